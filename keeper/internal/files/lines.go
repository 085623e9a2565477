package files

import (
	"bytes"
	"errors"
	"io"

	"skerry/keeper/internal/bufpool"
	"skerry/keeper/internal/iolimit"
)

const maxLines = 1 << 20 // bytes in an answer

// Lines are lines of a file, without the last line break. More: the file continues after them. Cut: the only line is
// too long and was truncated.
type Lines struct {
	Text  string `json:"text"`
	Raw   []byte `json:"raw,omitempty"` // set if the text is not UTF-8
	Start int64  `json:"start"`
	Count int    `json:"count"`
	More  bool   `json:"more"`
	Cut   bool   `json:"cut"`
}

var errEnough = errors.New("enough")

type lineReader struct {
	first, last int64 // requested range
	line        int64 // current line
	text        []byte
	whole       int // bytes of text that are whole lines, with their line breaks
	count       int // number of whole lines
	more        bool
}

// Lines returns the lines from first to last, both included and counted from 1, as far as they fit into an answer.
func (fs *UserFS) Lines(path string, first, last int64) (*Lines, error) {
	file, _, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r := &lineReader{first: first, last: last, line: 1}
	err = bufpool.With(func(b []byte) error { return r.all(fs, file, b) })
	if err != nil && err != errEnough {
		return nil, err
	}
	return r.lines(), nil
}

func (r *lineReader) all(fs *UserFS, file iolimit.File, b []byte) error {
	for at := int64(0); ; {
		n, err := file.ReadAt(b, at)
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = fs.heartbeat()
		}
		if err == nil {
			err = r.take(b[:n])
		}
		if err != nil {
			return err
		}
		at += int64(n)
	}
}

// take processes the next piece of the file.
func (r *lineReader) take(b []byte) error {
	if r.line < r.first {
		if n := int64(bytes.Count(b, []byte{'\n'})); r.line+n < r.first {
			r.line += n
			return nil
		}
	}
	for r.line < r.first {
		b = b[bytes.IndexByte(b, '\n')+1:]
		r.line++
	}
	for len(b) > 0 {
		if r.line > r.last || len(r.text) >= maxLines {
			r.more = true
			return errEnough
		}
		n := bytes.IndexByte(b, '\n') + 1
		if n == 0 {
			r.text = append(r.text, b...)
			return nil
		}
		r.text = append(r.text, b[:n]...)
		b = b[n:]
		r.line++
		r.count++
		r.whole = len(r.text)
	}
	return nil
}

// lines makes the result: whole lines, unless the only line is too long.
func (r *lineReader) lines() *Lines {
	l := &Lines{Start: r.first, Count: r.count, More: r.more}
	kept := r.text[:r.whole]
	if len(kept) < len(r.text) && (!r.more || r.count == 0) {
		kept, l.Count = r.text, l.Count+1 // the last line of the file, without a line break, or a line that is too long
		l.Cut = r.more
	}
	if len(kept) > maxLines && l.Count > 1 { // the last line made it too long
		kept, l.Count = kept[:bytes.LastIndexByte(kept[:len(kept)-1], '\n')+1], l.Count-1
		l.More = true
	}
	if len(kept) > maxLines {
		kept, l.Cut, l.More = kept[:maxLines], true, true
	}
	l.Text, l.Raw = text(string(bytes.TrimSuffix(kept, []byte{'\n'})))
	return l
}
