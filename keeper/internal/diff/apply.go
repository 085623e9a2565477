package diff

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
)

const (
	maxOffset = 200      // maximum distance of a hunk from its stated line
	maxWindow = 32 << 20 // bytes of lines in memory
	maxShown  = 200
)

// Mismatch is the error for a hunk that does not fit.
type Mismatch struct {
	Hunk   int // counted from 1
	Line   int // of the file
	Reason string
}

func (m *Mismatch) Error() string { return fmt.Sprintf("hunk %d: %s", m.Hunk, m.Reason) }

// applying reads the old file once, with a window of lines in which a hunk may fit.
type applying struct {
	number int // of the current hunk
	in     *bufio.Reader
	out    *bufio.Writer
	window []Line
	size   int // bytes in the window
	at     int // number of the window's first line
	eof    bool
	open   bool // the last written line has no line break
	beat   func() error
}

// Apply writes the result of applying hunks to a file. Offsets are their distances from the stated lines.
func Apply(in io.Reader, out io.Writer, hunks []Hunk, beat func() error) (offsets []int, err error) {
	a := &applying{in: bufio.NewReaderSize(in, 64<<10), out: bufio.NewWriterSize(out, 64<<10), at: 1, beat: beat}
	drift := 0
	for i := range hunks {
		h := &hunks[i]
		a.number = i + 1
		place, err := a.place(h, drift)
		if err != nil {
			return nil, err
		}
		drift = place - first(h)
		offsets = append(offsets, drift)
		if err := a.change(h, place); err != nil {
			return nil, err
		}
	}
	if err := a.rest(); err != nil {
		return nil, err
	}
	return offsets, a.out.Flush()
}

// first returns the first line of a hunk; a hunk that only adds states the line before.
func first(h *Hunk) int {
	if h.OldCount == 0 {
		return h.OldStart + 1
	}
	return h.OldStart
}

// place finds the position of a hunk: the stated one or else the only other fit nearby.
func (a *applying) place(h *Hunk, drift int) (int, error) {
	wanted := first(h) + drift
	if wanted < a.at {
		return 0, &Mismatch{a.number, wanted, "it overlaps the previous hunk"}
	}
	if err := a.pass(max(a.at, wanted-maxOffset)); err != nil {
		return 0, err
	}
	if err := a.fill(wanted + maxOffset + len(h.Old)); err != nil {
		return 0, err
	}
	if a.fits(h, wanted) {
		return wanted, nil
	}
	var places []int
	for at := a.at; h.OldCount > 0 && at <= wanted+maxOffset; at++ {
		if a.fits(h, at) {
			places = append(places, at)
		}
	}
	switch len(places) {
	case 0:
		return 0, a.differs(h, wanted)
	case 1:
		return places[0], nil
	}
	reason := fmt.Sprintf("it does not fit at line %d, but at both lines %d and %d", wanted, places[0], places[1])
	return 0, &Mismatch{a.number, wanted, reason}
}

func (a *applying) fits(h *Hunk, at int) bool {
	from := at - a.at
	if from < 0 || from+len(h.Old) > len(a.window) {
		return false
	}
	for i, l := range h.Old {
		if there := a.window[from+i]; there.Open != l.Open || !bytes.Equal(there.Text, l.Text) {
			return false
		}
	}
	return h.OldCount > 0 || from == 0 || !a.window[from-1].Open
}

// differs describes the first line that differs from a hunk.
func (a *applying) differs(h *Hunk, at int) error {
	for i, l := range h.Old {
		line := at + i
		if from := line - a.at; from < 0 || from >= len(a.window) {
			return &Mismatch{a.number, line, fmt.Sprintf("the file ends before line %d; expected %s", line, shown(l.Text))}
		}
		there := a.window[line-a.at]
		if !bytes.Equal(there.Text, l.Text) {
			return &Mismatch{a.number, line, fmt.Sprintf("line %d is %s, not %s", line, shown(there.Text), shown(l.Text))}
		}
		if there.Open != l.Open {
			return &Mismatch{a.number, line, fmt.Sprintf("line %d and the hunk differ in their line break at the end of the file", line)}
		}
	}
	return &Mismatch{a.number, at, fmt.Sprintf("line %d, after which it belongs, does not exist", at-1)}
}

func shown(text []byte) string {
	if len(text) > maxShown {
		return fmt.Sprintf("%q…", text[:maxShown])
	}
	return fmt.Sprintf("%q", text)
}

// change writes a hunk's new lines in place of its old ones.
func (a *applying) change(h *Hunk, place int) error {
	if err := a.pass(place); err != nil {
		return err
	}
	for _, l := range h.New {
		if err := a.write(l); err != nil {
			return err
		}
	}
	for _, l := range a.window[:len(h.Old)] {
		a.size -= len(l.Text)
	}
	a.window = a.window[len(h.Old):]
	a.at += len(h.Old)
	return nil
}

// fill reads lines up to a number, as far as they exist.
func (a *applying) fill(until int) error {
	for !a.eof && a.at+len(a.window) <= until {
		l, err := a.read()
		if err != nil {
			return err
		}
		if len(l.Text) == 0 && l.Open { // no further line
			return nil
		}
		if a.size += len(l.Text); a.size > maxWindow {
			return &Mismatch{a.number, a.at, "the surrounding lines are too long"}
		}
		a.window = append(a.window, l)
	}
	return nil
}

// read reads the next line, in pieces if it is longer than the buffer.
func (a *applying) read() (l Line, err error) {
	if err := a.beat(); err != nil {
		return l, err
	}
	for {
		piece, err := a.in.ReadSlice('\n')
		l.Text = append(l.Text, piece...)
		switch {
		case err == nil:
			l.Text = l.Text[:len(l.Text)-1]
			return l, nil
		case err == io.EOF:
			a.eof, l.Open = true, true
			return l, nil
		case err != bufio.ErrBufferFull:
			return l, err
		case len(l.Text) > maxWindow:
			return l, &Mismatch{a.number, a.at, "the surrounding lines are too long"}
		}
	}
}

// pass copies lines up to a number.
func (a *applying) pass(until int) error {
	for a.at < until {
		if len(a.window) == 0 {
			if err := a.fill(a.at); err != nil {
				return err
			}
			if len(a.window) == 0 {
				return nil
			}
		}
		l := a.window[0]
		a.window, a.at, a.size = a.window[1:], a.at+1, a.size-len(l.Text)
		if err := a.write(l); err != nil {
			return err
		}
	}
	return nil
}

func (a *applying) write(l Line) error {
	if a.open {
		return &Mismatch{a.number, a.at, "a line follows the line that the diff marks as the last"}
	}
	_, err := a.out.Write(l.Text)
	if a.open = l.Open; err == nil && !l.Open {
		err = a.out.WriteByte('\n')
	}
	return err
}

// rest copies the rest of the file.
func (a *applying) rest() error {
	if err := a.pass(a.at + len(a.window)); err != nil {
		return err
	}
	for {
		piece, err := a.in.ReadSlice('\n')
		if len(piece) > 0 {
			if a.open {
				return &Mismatch{a.number, a.at, "a line follows the line that the diff marks as the last"}
			}
			if _, err := a.out.Write(piece); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil && err != bufio.ErrBufferFull {
			return err
		}
		if err := a.beat(); err != nil {
			return err
		}
	}
}
