package files

import (
	"io"
	"syscall"

	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/bufpool"
	"skerry/keeper/internal/linux"
)

const appendFlags = syscall.O_WRONLY | syscall.O_APPEND | syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_CLOEXEC

// Append adds to the end of a file, piece by piece as the bytes arrive, and creates the file if it is missing.
func (fs *UserFS) Append(path string, content io.Reader, parents bool) (info *Info, err error) {
	w := &writing{fs: fs, dir: -1, fd: -1}
	defer w.close()
	if err = asuser.Do(fs.User, func() error { return w.openEnd(path, parents) }); err != nil {
		return nil, err
	}
	if err = bufpool.With(func(b []byte) error { return w.copy(content, b, true) }); err != nil {
		return nil, err
	}
	err = asuser.Do(fs.User, func() error {
		info, err = describe(w.dir, w.name)
		return err
	})
	return info, err
}

// openEnd opens the existing file or creates it. In both cases it never opens a file that takes its place meanwhile.
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
	return syscall.EAGAIN // the file keeps appearing and disappearing
}

// openEnd opens an existing regular file for appending, through the fd that it has examined.
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
	if linux.OnKernel(fd) { // the keeper writes the bytes with its own rights, and such files check the writer
		return -1, syscall.EACCES
	}
	return Reopen(fd, appendFlags)
}
