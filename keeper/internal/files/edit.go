package files

import (
	"errors"
	"io"
	"syscall"
	"time"

	"skerry/keeper/internal/disk"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/rights"
)

const (
	editTries = 5
	tick      = 12 * time.Millisecond // two changes within one tick of the kernel's clock look alike
)

// ErrChanged means that others changed a file while it was edited, again and again.
var ErrChanged = errors.New("it was changed by others meanwhile")

// edit is a file that is read, and replaced by what becomes of it, with no gap: what is replaced is what was read, or
// nothing is.
type edit struct {
	writing
	source  disk.File
	read    syscall.Stat_t // the file when it was read
	swapped bool           // the new file has its name, and the old one the temporary name
}

func newEdit(a *Area) *edit { return &edit{writing: writing{area: a, dir: -1, fd: -1}, source: -1} }

// start opens the file to be edited.
func (e *edit) start(path string) error {
	for range editTries {
		err := rights.Do(e.area.User, func() error { return e.open(path) })
		if err != nil {
			return err
		}
		age := time.Since(time.Unix(e.read.Ctim.Unix()))
		if age < 0 || age >= tick {
			return nil
		}
		// Another change could come now that would not show.
		time.Sleep(tick - age)
		e.stop()
	}
	return ErrChanged
}

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
	e.source, e.old = disk.File(source), &e.read
	return err
}

// reader gives the old file from its beginning on, as long as it was: one that grows meanwhile has no end.
func (e *edit) reader() io.Reader { return io.NewSectionReader(e.source, 0, e.read.Size) }

// Write adds to the new file.
func (e *edit) Write(b []byte) (int, error) {
	if err := disk.Write(e.fd, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// commit puts the new file in the old one's place. They change names, so that it can be seen afterwards what was
// replaced: if that is not what was read, all is taken back.
func (e *edit) commit(mode *uint32) error {
	if err := e.settle(WriteOptions{Mode: mode}); err != nil {
		return err
	}
	return rights.Do(e.area.User, func() error {
		if err := e.unchanged(); err != nil {
			return err
		}
		err := linux.Rename(e.dir, e.temp, e.dir, e.name, linux.Exchange)
		if err == syscall.EINVAL { // not every file system can
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
		if err := linux.Lstatat(e.dir, e.temp, &old); err != nil || !alike(&old, &e.read) {
			e.undo()
			return ErrChanged
		}
		return nil
	})
}

// unchanged says whether the file is still the one that was read. A link that took its place is nobody's to follow.
func (e *edit) unchanged() error {
	var now syscall.Stat_t
	err := linux.Lstatat(e.dir, e.name, &now)
	switch {
	case err == nil && kind(now.Mode) == "link":
		return syscall.ELOOP
	case err != nil || !alike(&now, &e.read):
	case now.Dev == e.read.Dev && now.Ino == e.read.Ino && now.Ctim == e.read.Ctim:
		return nil
	}
	return ErrChanged
}

// alike leaves out what a rename may change: the ctime, and in an overlay the inode.
func alike(a, b *syscall.Stat_t) bool {
	return a.Mode == b.Mode && a.Size == b.Size && a.Mtim == b.Mtim
}

// undo takes a commit back. It has to run with the user's rights.
func (e *edit) undo() {
	if e.swapped && linux.Rename(e.dir, e.temp, e.dir, e.name, linux.Exchange) == nil {
		e.swapped = false
	}
}

// stop closes all, and removes what has the temporary name: the new file, or after a commit the old one.
func (e *edit) stop() {
	if e.temp != "" {
		_ = rights.Do(e.area.User, func() error { return linux.Unlinkat(e.dir, e.temp, 0) })
	}
	closeAll(e.fd, e.dir, int(e.source))
	e.fd, e.dir, e.source, e.temp, e.swapped = -1, -1, -1, "", false
}

// again tries an edit until nobody changes the file meanwhile.
func (a *Area) again(try func() error) (err error) {
	for range editTries {
		if err = try(); !errors.Is(err, ErrChanged) {
			return err
		}
		if err := a.beat(); err != nil {
			return err
		}
	}
	return err
}
