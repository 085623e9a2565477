package files

import (
	"syscall"

	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/linux"
)

// maxRetries bounds the repetitions for a directory that gets new entries during its removal.
const maxRetries = 100

// Remove removes a file, a link, an empty directory or, if recursive, a whole tree. It removes links and never follows
// them.
func (fs *UserFS) Remove(path string, recursive bool) error {
	dir, name, whole := -1, "", false
	defer func() { closeAll(dir) }()
	err := asuser.Do(fs.User, func() (err error) {
		if dir, name, err = fs.parent(path); err != nil {
			return err
		}
		if special(name) {
			return syscall.EINVAL
		}
		if err = linux.Unlinkat(dir, name, 0); err != syscall.EISDIR {
			return err
		}
		err = linux.Rmdirat(dir, name)
		if whole = err == syscall.ENOTEMPTY && recursive; whole {
			return nil
		}
		return err
	})
	if err != nil || !whole {
		return err
	}
	return fs.removeTree(dir, name)
}

func (fs *UserFS) removeTree(dir int, name string) error {
	for n := 0; ; n++ {
		err := fs.empty(dir, name)
		if err == nil {
			err = asuser.Do(fs.User, func() error { return linux.Rmdirat(dir, name) })
		}
		if err != syscall.ENOTEMPTY || n == maxRetries {
			return err
		}
	}
}

// empty removes the contents of a directory.
func (fs *UserFS) empty(dir int, name string) error {
	t := &tree{}
	defer t.close()
	retryEdit := 0
	t.entry = func(dir int, e *linux.Dirent) (verdict, error) {
		err := error(syscall.EISDIR)
		if e.Type != syscall.DT_DIR {
			err = linux.Unlinkat(dir, e.Name, 0)
		}
		switch err {
		case syscall.EISDIR:
			return deeper, nil
		case syscall.ENOENT:
			return proceed, nil
		}
		return proceed, err
	}
	t.afterLeave = func(dir int, name string) error {
		err := linux.Rmdirat(dir, name)
		switch {
		case err == syscall.ENOENT:
			return nil
		case err == syscall.ENOTEMPTY && retryEdit < maxRetries:
			retryEdit++
			return t.enterLater(&t.stack[len(t.stack)-1], name)
		}
		return err
	}
	err := asuser.Do(fs.User, func() error {
		fd, err := syscall.Openat(dir, name, directoryFlags, 0)
		if err != nil {
			return err
		}
		return t.begin(fd)
	})
	if err == nil {
		_, err = fs.runSteps(t.step)
	}
	return err
}
