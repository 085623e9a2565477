package tree

import (
	"strings"
	"syscall"

	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/tar"
)

// leaving is a new directory that gets its own mode and time once the archive has left it: before that, it has to be
// writable, and what is made in it changes its time.
type leaving struct {
	name  string
	mode  uint32
	mtime int64
	is    inode
}

// directory makes one; one that is there already keeps its mode.
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
	} // else somebody inside has put another one there
	return nil
}

// leave finishes the directories that an entry of that name does not lie in.
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

func (u *unpacking) finish(d leaving) error {
	fd, err := linux.OpenIn(u.root, d.name, syscall.O_RDONLY|syscall.O_DIRECTORY)
	if err == syscall.ENOENT || err == syscall.ENOTDIR || err == syscall.ELOOP { // somebody inside took it away
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Close(fd) }()
	var st syscall.Stat_t
	if syscall.Fstat(fd, &st) != nil || d.is != (inode{st.Dev, st.Ino}) {
		return nil // root may be unpacking, and what has the name now is not what root made
	}
	if err := syscall.Fchmod(fd, d.mode); err != nil {
		return err
	}
	return linux.SetTimes(fd, "", d.mtime)
}

// openDirectory opens a directory of the tree; what is missing of its path is made.
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
