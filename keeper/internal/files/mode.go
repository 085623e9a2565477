package files

import (
	"strconv"
	"syscall"

	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/rights"
)

// change does something to what an O_PATH or other fd stands for.
type change func(fd int, st *syscall.Stat_t) error

// Chmod changes the mode of what is at a path; recursive, of all below too, but of no link.
func (a *Area) Chmod(path string, mode uint32, recursive bool) error {
	return a.change(path, recursive, func(fd int, st *syscall.Stat_t) error {
		if kind(st.Mode) == "link" {
			return nil
		}
		return chmod(fd, mode)
	})
}

// Chown changes who owns what is at a path; recursive, of all below too, of links themselves. -1 leaves an id as it is.
func (a *Area) Chown(path string, uid, gid int, recursive bool) error {
	return a.change(path, recursive, func(fd int, st *syscall.Stat_t) error { return linux.ChownFD(fd, uid, gid) })
}

// chmod goes through /proc, because an O_PATH fd can't be changed otherwise.
func chmod(fd int, mode uint32) error { return syscall.Fchmodat(fdDir, strconv.Itoa(fd), mode, 0) }

func chmodName(dir int, name string, mode uint32) error {
	fd, err := syscall.Openat(dir, name, linux.OPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer closeAll(fd)
	return chmod(fd, mode)
}

func (a *Area) change(path string, recursive bool, do change) error {
	path, err := a.absolute(path)
	if err != nil {
		return err
	}
	t := &tree{}
	defer t.close()
	t.entry = func(dir int, e *linux.Dirent) (verdict, error) { return changeEntry(dir, e.Name, do) }
	t.ending = func(fd int) error { return changeFD(fd, do) }
	t.unlock = func(dir int, name string) error { return changeName(dir, name, do) }
	err = rights.Do(a.User, func() error { return t.top(path, recursive, do) })
	if err == nil {
		_, err = a.inSteps(t.step)
	}
	return err
}

// top changes what the path itself stands for, or begins with it if it is a directory with all that is in it.
func (t *tree) top(path string, recursive bool, do change) error {
	fd, err := linux.OpenBelow(path, linux.OPath, 0)
	if err != nil {
		return err
	}
	defer closeAll(fd)
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return err
	}
	if ourOwn(fd) {
		return syscall.EACCES
	}
	if !recursive || kind(st.Mode) != "directory" {
		return do(fd, &st)
	}
	const flags = directoryFlags &^ syscall.O_NOFOLLOW
	open, err := Reopen(fd, flags)
	if err == syscall.EACCES && do(fd, &st) == nil {
		open, err = Reopen(fd, flags)
	}
	if err != nil {
		return err
	}
	return t.begin(open)
}

func changeEntry(dir int, name string, do change) (verdict, error) {
	fd, err := syscall.Openat(dir, name, linux.OPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err == syscall.ENOENT {
		return goOn, nil
	}
	if err != nil {
		return goOn, err
	}
	defer closeAll(fd)
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return goOn, err
	}
	if kind(st.Mode) == "directory" {
		return deeper, nil
	}
	return goOn, do(fd, &st)
}

func changeName(dir int, name string, do change) error {
	fd, err := syscall.Openat(dir, name, linux.OPath|syscall.O_NOFOLLOW|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer closeAll(fd)
	return changeFD(fd, do)
}

func changeFD(fd int, do change) error {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return err
	}
	return do(fd, &st)
}
