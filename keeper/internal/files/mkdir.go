package files

import (
	"strings"
	"syscall"

	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/linux"
)

const parentMode = 0o755

// Mkdir makes a directory. With parents, it also makes missing parents and accepts an existing directory.
func (fs *UserFS) Mkdir(path string, mode *uint32, parents bool) (info *Info, err error) {
	err = asuser.Do(fs.User, func() error {
		info, err = fs.mkdir(path, mode, parents)
		return err
	})
	return info, err
}

// mkdir makes one directory. The explicit mode is set afterwards, because mkdirat applies the umask.
func (fs *UserFS) mkdir(path string, mode *uint32, parents bool) (*Info, error) {
	dir, name, err := fs.place(path, parents)
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

// place opens the directory for a new name; with parents it is made if missing.
func (fs *UserFS) place(path string, parents bool) (dir int, name string, err error) {
	dir, name, err = fs.parent(path)
	if err == syscall.ENOENT && parents {
		if err = fs.makeParents(path); err == nil {
			dir, name, err = fs.parent(path)
		}
	}
	return dir, name, err
}

// isDirectory follows a link: `mkdir -p` accepts a link to a directory.
func isDirectory(dir int, name string) bool {
	fd, err := syscall.Openat(dir, name, linux.OPath|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	closeAll(fd)
	return err == nil
}

// makeParents makes every missing directory above a path.
func (fs *UserFS) makeParents(path string) error {
	path, err := fs.absolute(path)
	if err != nil {
		return err
	}
	trimmed := strings.TrimRight(path, "/")
	for i := 1; i < len(trimmed); i++ {
		if trimmed[i] != '/' || trimmed[i-1] == '/' {
			continue
		}
		dir, name, err := fs.parent(trimmed[:i])
		if err != nil {
			return err
		}
		if err = syscall.Mkdirat(dir, name, parentMode); err == syscall.EEXIST {
			err = nil
		}
		if err != nil && isDirectory(dir, name) { // no right to make it, but it exists
			err = nil
		}
		closeAll(dir)
		if err != nil {
			return err
		}
	}
	return nil
}
