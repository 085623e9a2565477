package track

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"syscall"
	"time"

	"skerry/keeper/internal/files"
	"skerry/keeper/internal/iolimit"
	"skerry/keeper/internal/linux"
)

const (
	tries    = 3
	tick     = 12 * time.Millisecond // two changes within one tick of the kernel's clock look alike
	hashTime = 20 * time.Second      // per file
)

// Content describes a file: its bytes follow, or its hash replaces them, or neither. Unsteady: it changed during every
// attempt to read it.
type Content struct {
	Entry    *Entry  `json:"entry"`
	Bytes    bool    `json:"bytes"`
	Hash     *string `json:"sha256"`
	Unsteady bool    `json:"unsteady"`
	Error    *string `json:"error"`
}

// Reader receives the contents: Begin for each path, then pieces, then End. Again: the pieces so far are void, and the
// file follows once more. A piece is in the buffer that Buffer returned.
type Reader struct {
	Begin  func(*Content) error
	Piece  func(n int) error
	End    func(End) error
	Beat   func() error
	Buffer func() []byte
}

// End follows the last piece.
type End struct {
	Again    bool    `json:"again"`
	Unsteady bool    `json:"unsteady"`
	Error    *string `json:"error"`
}

// Read reads the contents of paths.
func (t *Tracker) Read(paths []string, out Reader) error {
	root, _, err := t.openRoot()
	if err != nil && !absent(err) {
		return err
	}
	if err == nil {
		defer func() { _ = syscall.Close(root) }()
	}
	for _, path := range paths {
		if root < 0 {
			err = out.Begin(&Content{Entry: &Entry{Path: path, Type: "gone"}})
		} else {
			err = t.readPath(root, path, out)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readPath reads one path.
func (t *Tracker) readPath(root int, path string, out Reader) error {
	c := &Content{Entry: &Entry{Path: path}}
	fd, err := t.open(root, c.Entry)
	if fd >= 0 {
		defer func() { _ = syscall.Close(fd) }()
	}
	switch {
	case absent(err):
		c.Entry = &Entry{Path: path, Type: "gone"}
		return out.Begin(c)
	case err != nil && resourceError(err):
		return err
	case err != nil:
		text := err.Error()
		c.Entry, c.Error = &Entry{Path: path, Type: "other"}, &text
		return out.Begin(c)
	case fd < 0:
		return out.Begin(c)
	case c.Entry.Size > t.large:
		return t.hash(fd, c, out)
	}
	return t.send(fd, c, out)
}

// open examines a path and opens it if it is a regular file.
func (t *Tracker) open(root int, e *Entry) (fd int, err error) {
	fd = -1
	err = iolimit.Do(func() error {
		name, err := linux.OpenInside(root, e.Path, linux.OPath|syscall.O_NOFOLLOW)
		if err != nil {
			return err
		}
		defer func() { _ = syscall.Close(name) }()
		var st syscall.Stat_t
		if err = syscall.Fstat(name, &st); err != nil {
			return err
		}
		e.fill(&st)
		switch e.Type {
		case "link":
			e.Target, err = linux.Readlinkat(name, "")
		case "file":
			fd, err = files.Reopen(name, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY)
		}
		return err
	})
	return fd, err
}

// again examines an open file once more and reports whether it is unchanged.
func (e *Entry) again(fd int) (same bool, err error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return false, err
	}
	before := *e
	e.fill(&st)
	return *e == before, nil
}

// settle waits until the last change of a file is old enough that another change would show.
func (e *Entry) settle(fd int) error {
	for range tries {
		age := time.Since(time.Unix(0, e.Ctime))
		if age < 0 || age >= tick {
			return nil
		}
		time.Sleep(tick - age)
		if _, err := e.again(fd); err != nil {
			return err
		}
	}
	return nil
}

// send sends the bytes of a file, again if it changed meanwhile.
func (t *Tracker) send(fd int, c *Content, out Reader) error {
	c.Bytes = true
	for try := 1; ; try++ {
		if err := c.Entry.settle(fd); err != nil {
			return err
		}
		if err := out.Begin(c); err != nil {
			return err
		}
		same, err := t.pieces(fd, c.Entry, out)
		var bad syscall.Errno
		switch {
		case errors.As(err, &bad):
			text := err.Error()
			return out.End(End{Error: &text})
		case err != nil:
			return err
		case same || try == tries:
			return out.End(End{Unsteady: !same})
		}
		if err := out.End(End{Again: true}); err != nil {
			return err
		}
	}
}

// pieces sends a file up to its known size; missing bytes count as a change.
func (t *Tracker) pieces(fd int, e *Entry, out Reader) (same bool, err error) {
	left, at := e.Size, int64(0)
	for left > 0 {
		room := out.Buffer()
		n, err := iolimit.ReadAt(fd, room[:min(int64(len(room)), left)], at)
		if err == io.EOF {
			break
		}
		if err != nil {
			return false, err
		}
		if err := out.Piece(n); err != nil {
			return false, err
		}
		left, at = left-int64(n), at+int64(n)
	}
	same, err = e.again(fd)
	return same && left == 0, err
}

// hash sends the hash of a large file.
func (t *Tracker) hash(fd int, c *Content, out Reader) error {
	until := time.Now().Add(hashTime)
	for try := 1; ; try++ {
		if err := c.Entry.settle(fd); err != nil {
			return err
		}
		sum, err := t.sum(fd, c.Entry.Size, until, out)
		var bad syscall.Errno
		if err == errSlow || errors.As(err, &bad) {
			text := err.Error()
			c.Error = &text
			return out.Begin(c)
		}
		if err != nil {
			return err
		}
		same, err := c.Entry.again(fd)
		if err != nil {
			return err
		}
		if same || try == tries {
			c.Hash, c.Unsteady = &sum, !same
			return out.Begin(c)
		}
	}
}

// sum hashes a file within a time limit.
func (t *Tracker) sum(fd int, size int64, until time.Time, out Reader) (string, error) {
	digest := sha256.New()
	for at := int64(0); at < size; {
		if time.Now().After(until) {
			return "", errSlow
		}
		room := out.Buffer()
		n, err := iolimit.ReadAt(fd, room[:min(int64(len(room)), size-at)], at)
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", err
		}
		digest.Write(room[:n])
		at += int64(n)
		if err := out.Beat(); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(digest.Sum(nil)), nil
}
