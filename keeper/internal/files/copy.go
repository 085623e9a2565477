package files

import (
	"io"
	"syscall"

	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/bufpool"
	"skerry/keeper/internal/iolimit"
	"skerry/keeper/internal/linux"
)

const copyPiece = 8 << 20

// Copy copies a file or, with recursive, a directory with its contents. It keeps modes, times and links, and for root
// also owners. The copy appears completely or not at all.
func (fs *UserFS) Copy(from, to string, o PlaceOptions, recursive bool) (*Info, error) {
	return fs.copy(from, to, o, true, recursive)
}

// copy follows a link or copies the link itself.
func (fs *UserFS) copy(from, to string, o PlaceOptions, follow, recursive bool) (info *Info, err error) {
	c := &copying{fs: fs, options: o, source: -1}
	defer c.close()
	if from, err = fs.absolute(from); err != nil {
		return nil, err
	}
	if err = asuser.Do(fs.User, func() error { return c.open(from, follow) }); err != nil {
		return nil, err
	}
	switch kind(c.st.Mode) {
	case "file":
		return c.file(to)
	case "directory":
		if !recursive {
			return nil, syscall.EISDIR
		}
		return c.tree(to)
	}
	return c.other(from, to)
}

// copying is a copy in progress.
type copying struct {
	fs      *UserFS
	options PlaceOptions
	source  int // a file or directory open for reading, otherwise an O_PATH fd
	st      syscall.Stat_t
}

func (c *copying) open(path string, follow bool) error {
	flags := linux.OPath
	if !follow {
		flags |= syscall.O_NOFOLLOW
	}
	fd, err := linux.OpenBelow(path, flags, 0)
	if err != nil {
		return err
	}
	if err := syscall.Fstat(fd, &c.st); err != nil || isOwnProcFile(fd) {
		closeAll(fd)
		return syscall.EACCES
	}
	c.source, err = openSource(fd, &c.st)
	return err
}

// openSource opens for reading the file of an O_PATH fd, if opening has no side effects.
func openSource(fd int, st *syscall.Stat_t) (int, error) {
	flags := syscall.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_CLOEXEC
	switch kind(st.Mode) {
	case "directory":
		flags |= syscall.O_DIRECTORY
	case "file":
	default:
		return fd, nil
	}
	defer closeAll(fd)
	return Reopen(fd, flags)
}

func (c *copying) close() { closeAll(c.source) }

// file copies a regular file through a temporary file beside the target.
func (c *copying) file(to string) (info *Info, err error) {
	w := &writing{fs: c.fs, dir: -1, fd: -1}
	defer w.close()
	err = asuser.Do(c.fs.User, func() error {
		if err := c.checkFree(to); err != nil {
			return target(err)
		}
		return target(w.open(to, c.options.Parents))
	})
	if err != nil {
		return nil, err
	}
	if err = c.fs.copyBytes(c.source, w.fd, c.st.Size); err == nil {
		err = asuser.Do(c.fs.User, func() error { return c.finish(w.fd, &c.st) })
	}
	if err == nil && c.fs.User.UID != 0 {
		mode := c.mode(&c.st)
		err = w.setOwnerAndMode(WriteOptions{Mode: &mode})
	}
	err = asuser.Do(c.fs.User, func() error { return w.end(err, c.options.flags(), &info) })
	return info, err
}

// checkFree fails early if the target exists; the rename makes the final check.
func (c *copying) checkFree(to string) error {
	if c.options.Overwrite {
		return nil
	}
	dir, name, err := c.fs.parent(to)
	if err != nil {
		return nil
	}
	defer closeAll(dir)
	var st syscall.Stat_t
	if linux.Lstatat(dir, name, &st) == nil {
		return syscall.EEXIST
	}
	return nil
}

// mode removes set-id bits, which would act for another owner.
func (c *copying) mode(st *syscall.Stat_t) uint32 {
	if c.fs.User.UID == 0 {
		return st.Mode & 0o7777
	}
	return st.Mode & 0o1777
}

// finish sets the mode and time of a copy, and for root its owner. It uses the fd, because the name may mean another
// file by now.
func (c *copying) finish(fd int, st *syscall.Stat_t) error {
	if c.fs.User.UID == 0 {
		if err := linux.ChownFD(fd, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	if kind(st.Mode) != "link" {
		if err := chmod(fd, c.mode(st)); err != nil {
			return err
		}
	}
	return linux.SetMtime(fd, st.Mtim)
}

// other copies entries that are neither files nor directories.
func (c *copying) other(from, to string) (info *Info, err error) {
	err = asuser.Do(c.fs.User, func() error {
		fromDir, fromName, err := c.fs.parent(from)
		if err != nil {
			return err
		}
		defer closeAll(fromDir)
		dir, name, err := c.fs.place(to, c.options.Parents)
		if err != nil {
			return target(err)
		}
		defer closeAll(dir)
		if err := c.makeOther(fromDir, fromName, &c.st, dir, name); err != nil {
			return err
		}
		info, err = describe(dir, name)
		return err
	})
	return info, err
}

// makeOther makes a link, FIFO or socket. It checks the type of the new entry through an fd before setting its
// properties: the name may have been replaced meanwhile.
func (c *copying) makeOther(fromDir int, fromName string, st *syscall.Stat_t, dir int, name string) error {
	switch kind(st.Mode) {
	case "link":
		target, err := linux.Readlinkat(fromDir, fromName)
		if err == nil {
			err = linux.Symlinkat(target, dir, name)
		}
		if err != nil {
			return err
		}
	case "fifo", "socket":
		if err := syscall.Mknodat(dir, name, st.Mode&^0o6000, 0); err != nil {
			return err
		}
	default:
		return &NotRegular{kind(st.Mode)}
	}
	fd, err := syscall.Openat(dir, name, linux.OPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer closeAll(fd)
	var made syscall.Stat_t
	if err := syscall.Fstat(fd, &made); err != nil || kind(made.Mode) != kind(st.Mode) {
		return syscall.ESTALE
	}
	return c.finish(fd, st)
}

// copyBytes lets the kernel copy or share the stored extents of a file and keeps holes.
func (fs *UserFS) copyBytes(from, to int, size int64) error {
	if size == 0 { // read until EOF: files in /proc report size 0
		return fs.copyThroughMemory(from, to, 0, 1<<62)
	}
	for at := int64(0); at < size; {
		start, end, err := at, size, error(nil)
		_ = iolimit.Do(func() error {
			start, end, err = linux.Extent(from, at)
			return nil
		})
		if err == syscall.ENXIO {
			break
		}
		if err != nil {
			start, end = at, size
		}
		if err := fs.copyExtent(from, to, start, min(end, size)); err != nil {
			return err
		}
		at = end
	}
	return iolimit.Do(func() error {
		var now syscall.Stat_t
		if err := syscall.Fstat(from, &now); err != nil {
			return err
		}
		return syscall.Ftruncate(to, min(size, now.Size)) // the file may have become shorter
	})
}

// copyExtent copies one extent with copy_file_range, or through memory where the file systems do not support that.
func (fs *UserFS) copyExtent(from, to int, start, end int64) error {
	for start < end {
		if err := fs.heartbeat(); err != nil {
			return err
		}
		var n int64
		err := iolimit.Do(func() (err error) {
			n, err = linux.CopyRange(from, to, start, min(end-start, copyPiece))
			return err
		})
		switch err {
		case nil:
			if start += n; n == 0 {
				return nil // the file has become shorter
			}
		case syscall.EXDEV, syscall.EINVAL, syscall.EOPNOTSUPP, syscall.ENOSYS:
			return fs.copyThroughMemory(from, to, start, end)
		case syscall.EINTR:
		default:
			return err
		}
	}
	return nil
}

// copyThroughMemory copies bytes through the keeper's memory.
func (fs *UserFS) copyThroughMemory(from, to int, start, end int64) error {
	return bufpool.With(func(b []byte) error {
		for start < end {
			n, err := iolimit.ReadAt(from, b[:min(int64(len(b)), end-start)], start)
			if err == io.EOF {
				return nil
			}
			if err == nil {
				err = iolimit.WriteAt(to, b[:n], start)
			}
			if err == nil {
				err = fs.heartbeat()
			}
			if err != nil {
				return err
			}
			start += int64(n)
		}
		return nil
	})
}
