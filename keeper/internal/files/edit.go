package files

import (
	"errors"
	"io"
	"syscall"
	"time"

	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/iolimit"
	"skerry/keeper/internal/linux"
)

const (
	editTries = 5
	tick      = 12 * time.Millisecond // two changes within one tick of the kernel's clock look alike
)

// ErrChanged means that others kept changing a file during an edit.
var ErrChanged = errors.New("the file was changed by others meanwhile")

// edit reads a file and replaces it without a gap: it replaces exactly the content that it read, or nothing.
//
// It writes a new file beside the old one and exchanges their names. If the file that got the temporary name then
// differs from the file that was read (size, mtime; before the exchange also inode and ctime), it exchanges them back,
// and the edit is repeated.
type edit struct {
	writing
	source  iolimit.File
	read    syscall.Stat_t // the file at the time of reading
	swapped bool           // the new file has the name, the old one the temporary name
}

func newEdit(fs *UserFS) *edit { return &edit{writing: writing{fs: fs, dir: -1, fd: -1}, source: -1} }

// start opens the file to be edited.
func (e *edit) start(path string) error {
	for range editTries {
		err := asuser.Do(e.fs.User, func() error { return e.open(path) })
		if err != nil {
			return err
		}
		age := time.Since(time.Unix(e.read.Ctim.Unix()))
		if age < 0 || age >= tick {
			return nil
		}
		// A second change within this tick would not show.
		time.Sleep(tick - age)
		e.stop()
	}
	return ErrChanged
}

// open opens the file for reading and remembers its state. Generated files of the kernel are refused: they cannot be
// replaced.
func (e *edit) open(path string) error {
	e.old = nil
	if err := e.find(path, false); err != nil {
		return err
	}
	if e.old == nil {
		return syscall.ENOENT
	}
	fd, err := syscall.Openat(e.dir, e.name, linux.OPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer closeAll(fd)
	if err := writable(fd, &e.read); err != nil {
		return err
	}
	if linux.OnKernel(fd) {
		return syscall.EACCES
	}
	source, err := Reopen(fd, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY)
	e.source, e.old = iolimit.File(source), &e.read
	return err
}

// reader reads the old file up to its size at the start: a growing file would have no end.
func (e *edit) reader() io.Reader { return io.NewSectionReader(e.source, 0, e.read.Size) }

// Write adds to the new file.
func (e *edit) Write(b []byte) (int, error) {
	if err := iolimit.Write(e.fd, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// commit exchanges the new file and the old one, so that the replaced content can be checked afterwards; if it is not
// the content that was read, commit exchanges them back.
func (e *edit) commit(mode *uint32) error {
	if err := e.setOwnerAndMode(WriteOptions{Mode: mode}); err != nil {
		return err
	}
	return asuser.Do(e.fs.User, func() error {
		if err := e.unchanged(); err != nil {
			return err
		}
		err := linux.Rename(e.dir, e.temp, e.dir, e.name, linux.Exchange)
		if err == syscall.EINVAL { // not supported by every file system
			if err = linux.Rename(e.dir, e.temp, e.dir, e.name, 0); err == nil {
				e.temp = ""
			}
			return err
		}
		if err != nil {
			return err
		}
		e.swapped = true
		var old syscall.Stat_t
		if err := linux.Lstatat(e.dir, e.temp, &old); err != nil || !sameContent(&old, &e.read) {
			e.undo()
			return ErrChanged
		}
		return nil
	})
}

// unchanged checks that the file has not changed since it was read. A link in its place is an error.
func (e *edit) unchanged() error {
	var now syscall.Stat_t
	err := linux.Lstatat(e.dir, e.name, &now)
	switch {
	case err == nil && kind(now.Mode) == "link":
		return syscall.ELOOP
	case err != nil || !sameContent(&now, &e.read):
	case now.Dev == e.read.Dev && now.Ino == e.read.Ino && now.Ctim == e.read.Ctim:
		return nil
	}
	return ErrChanged
}

// sameContent ignores the fields that a rename may change: the ctime and, in an overlay, the inode.
func sameContent(a, b *syscall.Stat_t) bool {
	return a.Mode == b.Mode && a.Size == b.Size && a.Mtim == b.Mtim
}

// undo reverts a commit. It must run with the user's rights.
func (e *edit) undo() {
	if e.swapped && linux.Rename(e.dir, e.temp, e.dir, e.name, linux.Exchange) == nil {
		e.swapped = false
	}
}

// stop closes everything and removes the file with the temporary name: the new one or, after a commit, the old one.
func (e *edit) stop() {
	if e.temp != "" {
		_ = asuser.Do(e.fs.User, func() error { return linux.Unlinkat(e.dir, e.temp, 0) })
	}
	closeAll(e.fd, e.dir, int(e.source))
	e.fd, e.dir, e.source, e.temp, e.swapped = -1, -1, -1, "", false
}

// retryEdit repeats an edit while others change the file.
func (fs *UserFS) retryEdit(try func() error) (err error) {
	for range editTries {
		if err = try(); !errors.Is(err, ErrChanged) {
			return err
		}
		if err := fs.heartbeat(); err != nil {
			return err
		}
	}
	return err
}
