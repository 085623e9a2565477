package files

import (
	"io"
	"strings"
	"syscall"

	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/bufpool"
	"skerry/keeper/internal/iolimit"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/tempname"
)

const (
	maxLinks = 40
	newMode  = 0o644
)

// writing is a temporary file beside its target, before the rename.
type writing struct {
	fs   *UserFS
	dir  int
	name string
	temp string
	fd   int
	old  *syscall.Stat_t // nil: the target did not exist
}

// WriteOptions are the properties of the new file.
type WriteOptions struct {
	Mode    *uint32
	Owner   *Owner
	Parents bool // make missing parents

	Attributes map[string]string
}

// Owner holds the IDs for a file; -1: the writer's own.
type Owner struct{ UID, GID int }

// Write replaces a file completely or not at all. An existing file keeps its owner, and its mode unless one is given:
// inside the sandbox it looks like a write in place.
func (fs *UserFS) Write(path string, content io.Reader, o WriteOptions) (*Info, error) {
	w := &writing{fs: fs, dir: -1, fd: -1}
	defer w.close()
	if err := asuser.Do(fs.User, func() error { return w.open(path, o.Parents) }); err != nil {
		return nil, err
	}
	err := bufpool.With(func(b []byte) error { return w.copy(content, b, false) })
	if err == nil {
		err = w.setOwnerAndMode(o)
	}
	if err == nil {
		err = setAttributes(w.fd, o.Attributes)
	}
	var info *Info
	err = asuser.Do(fs.User, func() error { return w.end(err, 0, &info) })
	return info, err
}

// open finds the target and makes the temporary file beside it.
func (w *writing) open(path string, parents bool) error {
	if err := w.find(path, parents); err != nil {
		return err
	}
	return w.begin()
}

// find finds the target's directory, following links, and checks that an existing file may be written.
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

// writable checks the open file, not its name: the name can point to a different file at the next lookup, and the new
// file gets this file's owner.
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
		w.temp = tempname.Name()
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
	path, err := w.fs.absolute(path)
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
	w.dir, w.name, err = w.fs.place(path, parents)
	if err == nil && special(w.name) {
		return syscall.EISDIR
	}
	return err
}

// copy writes the content: a full buffer at a time, for fewer and larger calls, or each piece at once.
func (w *writing) copy(content io.Reader, buffer []byte, atOnce bool) error {
	for {
		n, err := content.Read(buffer)
		for !atOnce && err == nil && n < len(buffer) {
			more := 0
			more, err = content.Read(buffer[n:])
			n += more
		}
		if err := iolimit.Write(w.fd, buffer[:n]); err != nil {
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

// setOwnerAndMode gives the new file the owner of the old one, with the keeper's own rights: the user was allowed to
// write to the old file, and a write in place would have kept its owner. An explicit owner is set with the user's
// rights, which the kernel permits only to root. Set-id bits do not survive a write in place either, and only the owner
// may set them.
func (w *writing) setOwnerAndMode(o WriteOptions) error {
	final, uid := uint32(newMode), w.fs.User.UID
	var err error
	switch {
	case o.Owner != nil:
		err = asuser.Do(w.fs.User, func() error { return syscall.Fchown(w.fd, o.Owner.UID, o.Owner.GID) })
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
	if final&0o6000 != 0 && w.fs.User.UID != 0 && w.fs.User.UID != uid {
		return syscall.EPERM
	}
	return syscall.Fchmod(w.fd, final)
}

// end renames the file into place, or removes it after a failure.
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
