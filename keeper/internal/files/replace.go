package files

import (
	"bytes"
	"io"
	"strconv"

	"skerry/keeper/internal/buffers"
	"skerry/keeper/internal/rights"
)

const (
	// MaxReplaced is how long a text may be that is replaced: half of the buffer that it is looked for in.
	MaxReplaced = buffers.Size / 2
	linesTold   = 20
)

// Replaced tells where a text was found, or replaced: how often, and the lines of the first of them.
type Replaced struct {
	Count int     `json:"count"`
	Lines []int64 `json:"lines"`
}

// Occurs is the error for a text that is not there as often as was said. Wanted 0: at least once.
type Occurs struct {
	Replaced
	Wanted int
}

func (o *Occurs) Error() string {
	said := "the text is not in it"
	if o.Count > 0 {
		said = "the text is in it " + strconv.Itoa(o.Count) + " times, not " + strconv.Itoa(o.Wanted) + ": at line"
		if o.Count > 1 {
			said += "s"
		}
		for i, line := range o.Lines {
			if i > 0 {
				said += ","
			}
			said += " " + strconv.FormatInt(line, 10)
		}
		if o.Count > len(o.Lines) {
			said += " …"
		}
	}
	return said
}

// Replace puts one text in the place of another, which has to be there as often as count says; 0: at least once.
func (a *Area) Replace(path string, old, new []byte, count int) (found *Replaced, err error) {
	err = a.again(func() error {
		found, err = a.replaceOnce(path, old, new, count)
		return err
	})
	return found, err
}

func (a *Area) replaceOnce(path string, old, new []byte, count int) (*Replaced, error) {
	e := newEdit(a)
	defer e.stop()
	if err := e.start(path); err != nil {
		return nil, err
	}
	found := &Replaced{Lines: []int64{}}
	err := a.occurrences(e, old, func([]byte) error { return nil }, func(line int64) error {
		if found.Count++; len(found.Lines) < linesTold {
			found.Lines = append(found.Lines, line)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if found.Count == 0 || count > 0 && found.Count != count {
		return nil, &Occurs{*found, count}
	}
	if err := rights.Do(a.User, e.begin); err != nil {
		return nil, err
	}
	write := func(b []byte) error {
		_, err := e.Write(b)
		return err
	}
	if err := a.occurrences(e, old, write, func(int64) error { return write(new) }); err != nil {
		return nil, err
	}
	return found, e.commit(nil)
}

// occurrences goes through a file once: it gives what is between, and the line of each place where the text begins.
func (a *Area) occurrences(e *edit, old []byte, between func([]byte) error, hit func(int64) error) error {
	return buffers.With(func(b []byte) error {
		source, line, n, eof := e.reader(), int64(1), 0, false
		pass := func(part []byte) error {
			line += int64(bytes.Count(part, []byte{'\n'}))
			return between(part)
		}
		for {
			for n < len(b) && !eof {
				got, err := source.Read(b[n:])
				if n += got; err == io.EOF {
					eof = true
				} else if err != nil {
					return err
				}
			}
			at := 0
			for i := bytes.Index(b[:n], old); i >= 0; i = bytes.Index(b[at:n], old) {
				if err := pass(b[at : at+i]); err != nil {
					return err
				}
				if err := hit(line); err != nil {
					return err
				}
				line += int64(bytes.Count(old, []byte{'\n'}))
				at += i + len(old)
			}
			end := n
			if !eof {
				end = max(at, n-len(old)+1) // the text may begin at the end of the buffer
			}
			if err := pass(b[at:end]); err != nil || eof {
				return err
			}
			n = copy(b, b[end:n])
			if err := a.beat(); err != nil {
				return err
			}
		}
	})
}
