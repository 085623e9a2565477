package files

import (
	"io"
	"strings"
	"syscall"

	"skerry/keeper/internal/buffers"
	"skerry/keeper/internal/disk"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/rights"
	"skerry/keeper/internal/temporary"
)

const (
	maxLinks = 40
	newMode  = 0o644
)

// writing is a file on its way: a temporary one beside the target, until it takes its place.
type writing struct {
	area *Area
	dir  int
	name string
	temp string
	fd   int
	old  *syscall.Stat_t // nil: there was none
}

// WriteOptions say how a file is to be written.
type WriteOptions struct {
	Mode    *uint32
	Owner   *Owner
	Parents bool // missing directories above are made
}

// Owner has the ids that a file is to get; -1: the writer's own.
type Owner struct{ UID, GID int }

// Write replaces a file by what the reader gives, all or nothing. An existing file keeps its owner, and its mode unless
// one is given: to the inside it looks as if it had been written in place.
func (a *Area) Write(path string, content io.Reader, o WriteOptions) (*Info, error) {
	w := &writing{area: a, dir: -1, fd: -1}
	defer w.close()
	if err := rights.Do(a.User, func() error { return w.open(path, o.Parents) }); err != nil {
		return nil, err
	}
	err := buffers.With(func(b []byte) error { return w.copy(content, b, false) })
	if err == nil {
		err = w.settle(o)
	}
	var info *Info
	err = rights.Do(a.User, func() error { return w.end(err, 0, &info) })
	return info, err
}

// open finds the directory of what the path finally means, and makes the temporary file there.
func (w *writing) open(path string, parents bool) error {
	if err := w.find(path, parents); err != nil {
		return err
	}
	return w.begin()
}

// find finds the directory of what the path finally means, and whether a file is there that may be written to.
func (w *writing) find(path string, parents bool) error {
	if err := w.locate(path, parents); err != nil {
		return err
	}
	if w.old == nil {
		return nil
	}
	fd, err := syscall.Openat(w.dir, w.name, linux.OPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer closeAll(fd)
	return writable(fd, w.old)
}

// writable describes the very file that is asked for: its name may stand for another one at each look, and the new file
// gets the owner of this one.
func writable(fd int, st *syscall.Stat_t) error {
	if err := syscall.Fstat(fd, st); err != nil {
		return err
	}
	if err := regular(st); err != nil {
		return err
	}
	return linux.Writable(fd)
}

// begin makes the temporary file.
func (w *writing) begin() error {
	const flags = syscall.O_WRONLY | syscall.O_CREAT | syscall.O_EXCL | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	for {
		w.temp = temporary.Name()
		fd, err := syscall.Openat(w.dir, w.temp, flags, 0o600)
		if err == nil {
			w.fd = fd
			return nil
		}
		if w.temp = ""; err != syscall.EEXIST {
			return err
		}
	}
}

// locate follows links at the end of the path itself, because the rename must not replace a link.
func (w *writing) locate(path string, parents bool) error {
	path, err := w.area.absolute(path)
	if err != nil {
		return err
	}
	if strings.HasSuffix(path, "/") {
		return syscall.EISDIR
	}
	for range maxLinks {
		if err := w.enter(path, parents); err != nil {
			return err
		}
		var st syscall.Stat_t
		err := linux.Lstatat(w.dir, w.name, &st)
		if err == syscall.ENOENT {
			return nil
		}
		if err != nil {
			return err
		}
		if kind(st.Mode) != "link" {
			w.old = &st
			return nil
		}
		target, err := linux.Readlinkat(w.dir, w.name)
		if err != nil {
			return err
		}
		if strings.HasPrefix(target, "/") {
			path = target
		} else {
			path = path[:strings.LastIndexByte(path, '/')+1] + target
		}
	}
	return syscall.ELOOP
}

func (w *writing) enter(path string, parents bool) (err error) {
	closeAll(w.dir)
	w.dir, w.name, err = w.area.place(path, parents)
	if err == nil && special(w.name) {
		return syscall.EISDIR
	}
	return err
}

// copy writes what comes: each time all that fits into the buffer, which makes fewer and larger calls, or at once.
func (w *writing) copy(content io.Reader, buffer []byte, atOnce bool) error {
	for {
		n, err := content.Read(buffer)
		for !atOnce && err == nil && n < len(buffer) {
			more := 0
			more, err = content.Read(buffer[n:])
			n += more
		}
		if err := disk.Write(w.fd, buffer[:n]); err != nil {
			return err
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// settle gives the new file the old one's owner, with the keeper's own rights: the user was allowed to write to the old
// one, and in place it would have kept its owner. Another owner is given with the user's rights, which the kernel
// refuses to all but root. Set-id bits don't survive a write either, nor can one who is not the owner give them.
func (w *writing) settle(o WriteOptions) error {
	final, uid := uint32(newMode), w.area.User.UID
	var err error
	switch {
	case o.Owner != nil:
		err = rights.Do(w.area.User, func() error { return syscall.Fchown(w.fd, o.Owner.UID, o.Owner.GID) })
	case w.old != nil:
		uid = w.old.Uid
		err = syscall.Fchown(w.fd, int(w.old.Uid), int(w.old.Gid))
	}
	if err != nil {
		return err
	}
	if w.old != nil {
		final = w.old.Mode & 0o1777
	}
	if o.Mode != nil {
		final = *o.Mode
	}
	if final&0o6000 != 0 && w.area.User.UID != 0 && w.area.User.UID != uid {
		return syscall.EPERM
	}
	return syscall.Fchmod(w.fd, final)
}

// end puts the file in place, or takes it away again if anything failed.
func (w *writing) end(err error, flags int, info **Info) error {
	if err == nil {
		err = linux.Rename(w.dir, w.temp, w.dir, w.name, flags)
	}
	if err != nil {
		_ = linux.Unlinkat(w.dir, w.temp, 0)
		return err
	}
	*info, err = describe(w.dir, w.name)
	return err
}

func (w *writing) close() { closeAll(w.fd, w.dir) }
