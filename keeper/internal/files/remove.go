package files

import (
	"syscall"

	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/rights"
)

// againMost is how often a directory is gone through again that got new entries meanwhile.
const againMost = 100

// Remove removes a file, a link, an empty directory or, recursive, a whole tree. Links are removed, never followed.
func (a *Area) Remove(path string, recursive bool) error {
	dir, name, whole := -1, "", false
	defer func() { closeAll(dir) }()
	err := rights.Do(a.User, func() (err error) {
		if dir, name, err = a.parent(path); err != nil {
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
	return a.removeTree(dir, name)
}

func (a *Area) removeTree(dir int, name string) error {
	for n := 0; ; n++ {
		err := a.empty(dir, name)
		if err == nil {
			err = rights.Do(a.User, func() error { return linux.Rmdirat(dir, name) })
		}
		if err != syscall.ENOTEMPTY || n == againMost {
			return err
		}
	}
}

// empty removes all that is in a directory.
func (a *Area) empty(dir int, name string) error {
	t := &tree{}
	defer t.close()
	again := 0
	t.entry = func(dir int, e *linux.Dirent) (verdict, error) {
		err := error(syscall.EISDIR)
		if e.Type != syscall.DT_DIR {
			err = linux.Unlinkat(dir, e.Name, 0)
		}
		switch err {
		case syscall.EISDIR:
			return deeper, nil
		case syscall.ENOENT:
			return goOn, nil
		}
		return goOn, err
	}
	t.left = func(dir int, name string) error {
		err := linux.Rmdirat(dir, name)
		switch {
		case err == syscall.ENOENT:
			return nil
		case err == syscall.ENOTEMPTY && again < againMost:
			again++
			return t.later(&t.rooms[len(t.rooms)-1], name)
		}
		return err
	}
	err := rights.Do(a.User, func() error {
		fd, err := syscall.Openat(dir, name, directoryFlags, 0)
		if err != nil {
			return err
		}
		return t.begin(fd)
	})
	if err == nil {
		_, err = a.inSteps(t.step)
	}
	return err
}
