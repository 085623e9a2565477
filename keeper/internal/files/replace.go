package files

import (
	"bytes"
	"io"
	"strconv"

	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/bufpool"
)

const (
	// MaxReplaced bounds the text to replace: half of the search buffer.
	MaxReplaced      = bufpool.Size / 2
	maxReportedLines = 20
)

// Replaced reports occurrences of a text: their number and the lines of the first ones.
type Replaced struct {
	Count int     `json:"count"`
	Lines []int64 `json:"lines"`
}

// Occurs is the error for an unexpected number of occurrences. Wanted 0: at least one.
type Occurs struct {
	Replaced
	Wanted int
}

func (o *Occurs) Error() string {
	if o.Count == 0 {
		return "text not found"
	}
	message := "the text occurs " + strconv.Itoa(o.Count) + " times, not " + strconv.Itoa(o.Wanted) + ": at line"
	if o.Count > 1 {
		message += "s"
	}
	for i, line := range o.Lines {
		if i > 0 {
			message += ","
		}
		message += " " + strconv.FormatInt(line, 10)
	}
	if o.Count > len(o.Lines) {
		message += " …"
	}
	return message
}

// Replace replaces a text that must occur count times; 0: at least once.
func (fs *UserFS) Replace(path string, old, new []byte, count int) (found *Replaced, err error) {
	err = fs.retryEdit(func() error {
		found, err = fs.replaceOnce(path, old, new, count)
		return err
	})
	return found, err
}

// replaceOnce counts the occurrences in a first pass and writes the new file in a second one, so that memory does not
// grow with the file.
func (fs *UserFS) replaceOnce(path string, old, new []byte, count int) (*Replaced, error) {
	e := newEdit(fs)
	defer e.stop()
	if err := e.start(path); err != nil {
		return nil, err
	}
	found := &Replaced{Lines: []int64{}}
	err := fs.occurrences(e, old, func([]byte) error { return nil }, func(line int64) error {
		if found.Count++; len(found.Lines) < maxReportedLines {
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
	if err := asuser.Do(fs.User, e.begin); err != nil {
		return nil, err
	}
	write := func(b []byte) error {
		_, err := e.Write(b)
		return err
	}
	if err := fs.occurrences(e, old, write, func(int64) error { return write(new) }); err != nil {
		return nil, err
	}
	return found, e.commit(nil)
}

// occurrences reads a file once and passes on the bytes between occurrences and the line number of each occurrence.
func (fs *UserFS) occurrences(e *edit, old []byte, between func([]byte) error, hit func(int64) error) error {
	return bufpool.With(func(b []byte) error {
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
				end = max(at, n-len(old)+1) // an occurrence may start at the end of the buffer
			}
			if err := pass(b[at:end]); err != nil || eof {
				return err
			}
			n = copy(b, b[end:n])
			if err := fs.heartbeat(); err != nil {
				return err
			}
		}
	})
}
