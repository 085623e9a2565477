package files

import (
	"strconv"
	"syscall"

	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/linux"
)

// change modifies the file of an fd, which may be an O_PATH fd.
type change func(fd int, st *syscall.Stat_t) error

// Chmod changes the mode of a path and, if recursive, of everything below it except links.
func (fs *UserFS) Chmod(path string, mode uint32, recursive bool) error {
	return fs.change(path, recursive, func(fd int, st *syscall.Stat_t) error {
		if kind(st.Mode) == "link" {
			return nil
		}
		return chmod(fd, mode)
	})
}

// Chown changes the owner of a path and, if recursive, of everything below it, including links themselves. -1 keeps an
// ID.
func (fs *UserFS) Chown(path string, uid, gid int, recursive bool) error {
	return fs.change(path, recursive, func(fd int, st *syscall.Stat_t) error { return linux.ChownFD(fd, uid, gid) })
}

// chmod goes through /proc, because an O_PATH fd offers no other way.
func chmod(fd int, mode uint32) error { return syscall.Fchmodat(fdDir, strconv.Itoa(fd), mode, 0) }

func chmodName(dir int, name string, mode uint32) error {
	fd, err := syscall.Openat(dir, name, linux.OPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer closeAll(fd)
	return chmod(fd, mode)
}

func (fs *UserFS) change(path string, recursive bool, do change) error {
	path, err := fs.absolute(path)
	if err != nil {
		return err
	}
	t := &tree{}
	defer t.close()
	t.entry = func(dir int, e *linux.Dirent) (verdict, error) { return changeEntry(dir, e.Name, do) }
	t.onLeave = func(fd int) error { return changeFD(fd, do) }
	t.tryUnlock = func(dir int, name string) error { return changeName(dir, name, do) }
	err = asuser.Do(fs.User, func() error { return t.top(path, recursive, do) })
	if err == nil {
		_, err = fs.runSteps(t.step)
	}
	return err
}

// top changes the path itself, or starts the recursion if it is a directory.
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
	if isOwnProcFile(fd) {
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

// changeEntry changes one entry of a directory; directories are changed after their contents, since the change may take
// the right to enter.
func changeEntry(dir int, name string, do change) (verdict, error) {
	fd, err := syscall.Openat(dir, name, linux.OPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err == syscall.ENOENT {
		return proceed, nil
	}
	if err != nil {
		return proceed, err
	}
	defer closeAll(fd)
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return proceed, err
	}
	if kind(st.Mode) == "directory" {
		return deeper, nil
	}
	return proceed, do(fd, &st)
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
