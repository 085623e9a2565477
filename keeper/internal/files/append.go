package files

import (
	"io"
	"syscall"

	"skerry/keeper/internal/buffers"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/rights"
)

const appendFlags = syscall.O_WRONLY | syscall.O_APPEND | syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_CLOEXEC

// Append adds what the reader gives to the end of a file, piece by piece as it comes, and makes it if there is none.
func (a *Area) Append(path string, content io.Reader, parents bool) (info *Info, err error) {
	w := &writing{area: a, dir: -1, fd: -1}
	defer w.close()
	if err = rights.Do(a.User, func() error { return w.openEnd(path, parents) }); err != nil {
		return nil, err
	}
	if err = buffers.With(func(b []byte) error { return w.copy(content, b, true) }); err != nil {
		return nil, err
	}
	err = rights.Do(a.User, func() error {
		info, err = describe(w.dir, w.name)
		return err
	})
	return info, err
}

// openEnd opens the file itself, or makes it; whichever it is, nothing that takes its place meanwhile is opened.
func (w *writing) openEnd(path string, parents bool) error {
	for range maxLinks {
		w.old = nil
		if err := w.locate(path, parents); err != nil {
			return err
		}
		var err error
		if w.old == nil {
			w.fd, err = syscall.Openat(w.dir, w.name, appendFlags|syscall.O_CREAT|syscall.O_EXCL|syscall.O_NOFOLLOW, newMode)
		} else {
			w.fd, err = openEnd(w.dir, w.name)
		}
		if err != syscall.EEXIST && err != syscall.ENOENT && err != syscall.ELOOP {
			return err
		}
	}
	return syscall.EAGAIN // it comes and goes
}

func openEnd(dir int, name string) (int, error) {
	fd, err := syscall.Openat(dir, name, linux.OPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer closeAll(fd)
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return -1, err
	}
	if kind(st.Mode) == "link" {
		return -1, syscall.ELOOP
	}
	if err := regular(&st); err != nil {
		return -1, err
	}
	if linux.OnKernel(fd) { // the bytes are written with the keeper's rights, and those files look at who writes
		return -1, syscall.EACCES
	}
	return Reopen(fd, appendFlags)
}
