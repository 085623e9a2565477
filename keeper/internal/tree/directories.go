package tree

import (
	"strings"
	"syscall"

	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/tar"
)

// leaving is a new directory that gets its mode and time when the archive has left it: until then it must be writable,
// and new entries change its time.
type leaving struct {
	name  string
	mode  uint32
	mtime int64
	is    inode
}

// directory makes a directory; an existing one keeps its mode.
func (u *unpacking) directory(e *tar.Entry) error {
	if e.Name == "" {
		return nil
	}
	dir, name, err := u.enter(e.Name)
	if err != nil {
		return err
	}
	made := e.Mode&0o777&^umask | 0o700
	err = syscall.Mkdirat(dir, name, made)
	if err == syscall.EEXIST {
		fd, err := linux.OpenIn(dir, name, linux.OPath|syscall.O_DIRECTORY)
		if err != nil {
			return err
		}
		return syscall.Close(fd)
	}
	if err != nil {
		return err
	}
	u.sum.Directories++
	var st syscall.Stat_t
	if linux.Lstatat(dir, name, &st) == nil && st.Mode == syscall.S_IFDIR|made|st.Mode&syscall.S_ISGID {
		u.leaving = append(u.leaving, leaving{e.Name, e.Mode & keptBits, e.Mtime, inode{st.Dev, st.Ino}})
	} // otherwise a process inside has replaced it
	return nil
}

// leave finishes the directories that do not contain the named entry.
func (u *unpacking) leave(name string) error {
	for len(u.leaving) > 0 {
		last := u.leaving[len(u.leaving)-1]
		if strings.HasPrefix(name, last.name) && len(name) > len(last.name) && name[len(last.name)] == '/' {
			return nil
		}
		u.leaving = u.leaving[:len(u.leaving)-1]
		if err := u.finish(last); err != nil {
			return at(last.name, err)
		}
	}
	return nil
}

// finish sets the mode and time of a directory, if it has not been replaced.
func (u *unpacking) finish(d leaving) error {
	fd, err := linux.OpenIn(u.root, d.name, syscall.O_RDONLY|syscall.O_DIRECTORY)
	if err == syscall.ENOENT || err == syscall.ENOTDIR || err == syscall.ELOOP { // a process inside has removed it
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Close(fd) }()
	var st syscall.Stat_t
	if syscall.Fstat(fd, &st) != nil || d.is != (inode{st.Dev, st.Ino}) {
		return nil // root may be unpacking, and the name now belongs to something that root did not make
	}
	if err := syscall.Fchmod(fd, d.mode); err != nil {
		return err
	}
	return linux.SetTimes(fd, "", d.mtime)
}

// openDirectory opens a directory of the tree and makes missing parts of its path.
func (u *unpacking) openDirectory(name string) (int, error) {
	const flags = linux.OPath | syscall.O_DIRECTORY
	fd, err := linux.OpenIn(u.root, name, flags)
	if err != syscall.ENOENT {
		return fd, err
	}
	at := u.root
	for _, part := range strings.Split(name, "/") {
		err := syscall.Mkdirat(at, part, parentMode)
		if err == nil {
			u.sum.Directories++
		}
		next := -1
		if err == nil || err == syscall.EEXIST {
			next, err = linux.OpenIn(at, part, flags)
		}
		if at != u.root {
			_ = syscall.Close(at)
		}
		if err != nil {
			return -1, err
		}
		at = next
	}
	return at, nil
}
