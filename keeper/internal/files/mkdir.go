package files

import (
	"strings"
	"syscall"

	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/rights"
)

const parentMode = 0o755

// Mkdir makes a directory. With parents, missing ones above it are made too, and one that is there is fine.
func (a *Area) Mkdir(path string, mode *uint32, parents bool) (info *Info, err error) {
	err = rights.Do(a.User, func() error {
		info, err = a.mkdir(path, mode, parents)
		return err
	})
	return info, err
}

func (a *Area) mkdir(path string, mode *uint32, parents bool) (*Info, error) {
	dir, name, err := a.place(path, parents)
	if err != nil {
		return nil, err
	}
	defer closeAll(dir)
	err = syscall.Mkdirat(dir, name, parentMode)
	if err == nil && mode != nil {
		err = chmodName(dir, name, *mode)
	}
	if err == syscall.EEXIST && parents && isDirectory(dir, name) {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return describe(dir, name)
}

// place opens the directory that a new name is to be in; with parents it is made if it is missing.
func (a *Area) place(path string, parents bool) (dir int, name string, err error) {
	dir, name, err = a.parent(path)
	if err == syscall.ENOENT && parents {
		if err = a.makeParents(path); err == nil {
			dir, name, err = a.parent(path)
		}
	}
	return dir, name, err
}

// isDirectory follows a link: `mkdir -p` is content with a link to a directory.
func isDirectory(dir int, name string) bool {
	fd, err := syscall.Openat(dir, name, linux.OPath|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	closeAll(fd)
	return err == nil
}

// makeParents makes every missing directory above a path.
func (a *Area) makeParents(path string) error {
	path, err := a.absolute(path)
	if err != nil {
		return err
	}
	trimmed := strings.TrimRight(path, "/")
	for i := 1; i < len(trimmed); i++ {
		if trimmed[i] != '/' || trimmed[i-1] == '/' {
			continue
		}
		dir, name, err := a.parent(trimmed[:i])
		if err != nil {
			return err
		}
		if err = syscall.Mkdirat(dir, name, parentMode); err == syscall.EEXIST {
			err = nil
		}
		if err != nil && isDirectory(dir, name) { // no right to make it, but it is there
			err = nil
		}
		closeAll(dir)
		if err != nil {
			return err
		}
	}
	return nil
}
