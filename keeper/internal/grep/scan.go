package grep

import (
	"bytes"
	"errors"
	"io"
)

const (
	maxText   = 2000 // bytes shown of a line
	lead      = 200  // shown before the match
	binaryMax = 8 << 10
	piece     = 64 << 10 // bytes searched between two heartbeats
)

// ErrBinary means that a file is not text.
var ErrBinary = errors.New("not a text file")

// Hit is a matching line with its context. Cut: the line was truncated.
type Hit struct {
	Line          int64
	Text          []byte
	Cut           bool
	Before, After [][]byte
}

// scan slides a buffer over a text. Everything before `at` has been searched.
type scan struct {
	*Matcher
	context int
	buffer  []byte
	n       int   // bytes in the buffer
	at      int   // start of a line
	line    int64 // number of that line
	eof     bool
	partial bool
}

// Scan passes the matching lines of a text to each until each returns false. Partial: a line was longer than the
// buffer, and only its beginning was searched. The arguments of each are valid until it returns.
func (m *Matcher) Scan(
	read func([]byte) (int, error), buffer []byte, context int, each func(*Hit) bool, beat func() error,
) (partial bool, err error) {
	s := &scan{Matcher: m, context: context, buffer: buffer, line: 1}
	for first := true; ; first = false {
		if err := s.fill(read); err != nil {
			return s.partial, err
		}
		if first && bytes.IndexByte(s.buffer[:min(s.n, binaryMax)], 0) >= 0 {
			return false, ErrBinary
		}
		for limit := s.limit(); s.at < limit; {
			if err := beat(); err != nil {
				return s.partial, err
			}
			if !s.search(s.portion(limit), each) {
				return s.partial, nil
			}
		}
		if s.eof {
			return s.partial, nil
		}
		if err := s.slide(read); err != nil {
			return s.partial, err
		}
	}
}

func (s *scan) fill(read func([]byte) (int, error)) error {
	for s.n < len(s.buffer) && !s.eof {
		n, err := read(s.buffer[s.n:])
		s.n += n
		if err == io.EOF {
			s.eof = true
		} else if err != nil {
			return err
		}
	}
	return nil
}

// limit returns the end of the lines that are complete together with their context after them. If the buffer is too
// small for the context, complete lines suffice; if it is too small for a line, a part of the line.
func (s *scan) limit() int {
	if s.eof {
		return s.n
	}
	whole := bytes.LastIndexByte(s.buffer[s.at:s.n], '\n') + 1
	if whole == 0 {
		s.partial = true
		return s.n
	}
	if limit := s.back(s.at+whole, s.context); limit > s.at {
		return limit
	}
	return s.at + whole
}

// back returns the start of the line that is `lines` lines above.
func (s *scan) back(from, lines int) int {
	for ; lines > 0 && from > 0; lines-- {
		from = bytes.LastIndexByte(s.buffer[:from-1], '\n') + 1
	}
	return from
}

// portion returns a part of the searchable bytes, in whole lines.
func (s *scan) portion(limit int) int {
	if limit-s.at <= piece {
		return limit
	}
	if i := bytes.LastIndexByte(s.buffer[s.at:s.at+piece], '\n'); i >= 0 {
		return s.at + i + 1
	}
	return min(limit, s.at+piece+end(s.buffer[s.at+piece:limit])+1)
}

// search finds the matches in the complete lines of the buffer.
func (s *scan) search(limit int, each func(*Hit) bool) bool {
	for s.at < limit {
		match := s.find(bytes.TrimSuffix(s.buffer[s.at:limit], []byte{'\n'})) // no line follows the last line break
		if match < 0 {
			break
		}
		match += s.at
		from := bytes.LastIndexByte(s.buffer[:match], '\n') + 1
		to := from + end(s.buffer[from:limit])
		s.line += int64(bytes.Count(s.buffer[s.at:from], []byte{'\n'}))
		hit := &Hit{Line: s.line, Before: s.before(from), After: s.after(to)}
		hit.Text, hit.Cut = show(s.buffer[from:to], match-from)
		if !each(hit) {
			return false
		}
		if s.at = to; to < limit {
			s.at, s.line = to+1, s.line+1
		}
	}
	s.line += int64(bytes.Count(s.buffer[s.at:limit], []byte{'\n'}))
	s.at = limit
	return true
}

func (s *scan) before(lineStart int) (lines [][]byte) {
	for at := lineStart; len(lines) < s.context && at > 0; {
		above := s.back(at, 1)
		text, _ := show(s.buffer[above:at-1], 0)
		lines = append([][]byte{text}, lines...)
		at = above
	}
	return lines
}

func (s *scan) after(lineEnd int) (lines [][]byte) {
	for at := lineEnd + 1; len(lines) < s.context && at < s.n; {
		length := end(s.buffer[at:s.n])
		text, _ := show(s.buffer[at:at+length], 0)
		lines = append(lines, text)
		at += length + 1
	}
	return lines
}

// show returns the visible part of a line, which contains the match.
func show(line []byte, match int) (text []byte, cut bool) {
	line = bytes.TrimSuffix(line, []byte{'\r'})
	if len(line) <= maxText {
		return line, false
	}
	from := min(max(0, match-lead), len(line)-maxText)
	return line[from : from+maxText], true
}

// slide makes space and keeps the context above the coming lines. In the middle of a line it first drops the rest of
// that line.
func (s *scan) slide(read func([]byte) (int, error)) error {
	if s.n > 0 && s.buffer[s.n-1] != '\n' && s.at == s.n {
		return s.skip(read)
	}
	from := s.back(s.at, s.context)
	if s.n-from > len(s.buffer)/2 {
		from = s.at
	}
	s.n = copy(s.buffer, s.buffer[from:s.n])
	s.at -= from
	return nil
}

// skip drops the rest of a line that is longer than the buffer.
func (s *scan) skip(read func([]byte) (int, error)) error {
	for {
		n, err := read(s.buffer)
		if i := bytes.IndexByte(s.buffer[:n], '\n'); i >= 0 {
			s.n = copy(s.buffer, s.buffer[i+1:n])
			s.at = 0
			s.line++
			s.eof = err == io.EOF
			return nil
		}
		if err == io.EOF {
			s.n, s.at, s.eof = 0, 0, true
			return nil
		}
		if err != nil {
			return err
		}
	}
}
