package files

import (
	"io"
	"syscall"

	"skerry/keeper/internal/buffers"
	"skerry/keeper/internal/disk"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/rights"
)

const copyPiece = 8 << 20

// Copy copies a file, or with recursive a directory with all that is in it: modes, times and links are kept, owners too
// if root copies. The copy is there whole or not at all.
func (a *Area) Copy(from, to string, o PlaceOptions, recursive bool) (*Info, error) {
	return a.copy(from, to, o, true, recursive)
}

// copy takes a link as what it leads to, or as it is.
func (a *Area) copy(from, to string, o PlaceOptions, follow, recursive bool) (info *Info, err error) {
	c := &copying{area: a, options: o, source: -1}
	defer c.close()
	if from, err = a.absolute(from); err != nil {
		return nil, err
	}
	if err = rights.Do(a.User, func() error { return c.open(from, follow) }); err != nil {
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

// copying is a copy under way.
type copying struct {
	area    *Area
	options PlaceOptions
	source  int // what is copied: a file or directory open for reading, else an O_PATH fd
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
	if err := syscall.Fstat(fd, &c.st); err != nil || ourOwn(fd) {
		closeAll(fd)
		return syscall.EACCES
	}
	c.source, err = opened(fd, &c.st)
	return err
}

// opened opens for reading what an O_PATH fd stands for, if that can do no harm.
func opened(fd int, st *syscall.Stat_t) (int, error) {
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

func (c *copying) file(to string) (info *Info, err error) {
	w := &writing{area: c.area, dir: -1, fd: -1}
	defer w.close()
	err = rights.Do(c.area.User, func() error {
		if err := c.free(to); err != nil {
			return target(err)
		}
		return target(w.open(to, c.options.Parents))
	})
	if err != nil {
		return nil, err
	}
	if err = c.area.copyBytes(c.source, w.fd, c.st.Size); err == nil {
		err = rights.Do(c.area.User, func() error { return c.finish(w.fd, &c.st) })
	}
	if err == nil && c.area.User.UID != 0 {
		mode := c.mode(&c.st)
		err = w.settle(WriteOptions{Mode: &mode})
	}
	err = rights.Do(c.area.User, func() error { return w.end(err, c.options.flags(), &info) })
	return info, err
}

// free says early that the place is taken; the rename says it for certain.
func (c *copying) free(to string) error {
	if c.options.Overwrite {
		return nil
	}
	dir, name, err := c.area.parent(to)
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

// mode leaves out set-id bits that would speak for another owner.
func (c *copying) mode(st *syscall.Stat_t) uint32 {
	if c.area.User.UID == 0 {
		return st.Mode & 0o7777
	}
	return st.Mode & 0o1777
}

// finish gives a copy its mode and time, and if root copies its owner. It goes by the fd: a name may mean something else
// by now.
func (c *copying) finish(fd int, st *syscall.Stat_t) error {
	if c.area.User.UID == 0 {
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

// other copies what is neither file nor directory.
func (c *copying) other(from, to string) (info *Info, err error) {
	err = rights.Do(c.area.User, func() error {
		fromDir, fromName, err := c.area.parent(from)
		if err != nil {
			return err
		}
		defer closeAll(fromDir)
		dir, name, err := c.area.place(to, c.options.Parents)
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

// copyBytes has the kernel copy, or share, what is stored of a file, and leaves holes as they are.
func (a *Area) copyBytes(from, to int, size int64) error {
	if size == 0 { // what it gives all the same: the files of /proc say that they are empty
		return a.pump(from, to, 0, 1<<62)
	}
	for at := int64(0); at < size; {
		start, end, err := at, size, error(nil)
		_ = disk.Do(func() error {
			start, end, err = linux.Extent(from, at)
			return nil
		})
		if err == syscall.ENXIO {
			break
		}
		if err != nil {
			start, end = at, size
		}
		if err := a.copyExtent(from, to, start, min(end, size)); err != nil {
			return err
		}
		at = end
	}
	return disk.Do(func() error {
		var now syscall.Stat_t
		if err := syscall.Fstat(from, &now); err != nil {
			return err
		}
		return syscall.Ftruncate(to, min(size, now.Size)) // it may have become shorter
	})
}

func (a *Area) copyExtent(from, to int, start, end int64) error {
	for start < end {
		if err := a.beat(); err != nil {
			return err
		}
		var n int64
		err := disk.Do(func() (err error) {
			n, err = linux.CopyRange(from, to, start, min(end-start, copyPiece))
			return err
		})
		switch err {
		case nil:
			if start += n; n == 0 {
				return nil // it has become shorter
			}
		case syscall.EXDEV, syscall.EINVAL, syscall.EOPNOTSUPP, syscall.ENOSYS:
			return a.pump(from, to, start, end)
		case syscall.EINTR:
		default:
			return err
		}
	}
	return nil
}

// pump moves bytes through the keeper.
func (a *Area) pump(from, to int, start, end int64) error {
	return buffers.With(func(b []byte) error {
		for start < end {
			n, err := disk.ReadAt(from, b[:min(int64(len(b)), end-start)], start)
			if err == io.EOF {
				return nil
			}
			if err == nil {
				err = disk.WriteAt(to, b[:n], start)
			}
			if err == nil {
				err = a.beat()
			}
			if err != nil {
				return err
			}
			start += int64(n)
		}
		return nil
	})
}
