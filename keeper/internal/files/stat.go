package files

import (
	"strings"
	"syscall"

	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/rights"
)

// Stat describes a path. A link is described itself, unless it is to be followed.
func (a *Area) Stat(path string, follow bool) (info *Info, err error) {
	if path, err = a.absolute(path); err != nil {
		return nil, err
	}
	err = rights.Do(a.User, func() error {
		if follow {
			info, err = followed(path)
			return err
		}
		dir, name, err := a.parent(path)
		if err != nil {
			return err
		}
		defer closeAll(dir)
		info, err = describe(dir, name)
		return err
	})
	return info, err
}

func followed(path string) (*Info, error) {
	fd, err := linux.OpenBelow(path, linux.OPath, 0)
	if err != nil {
		return nil, err
	}
	defer closeAll(fd)
	if ourOwn(fd) {
		return nil, syscall.EACCES
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return nil, err
	}
	return newInfo(base(path), &st), nil
}

// base is the last name of a path; that of the root is ".".
func base(path string) string {
	path = strings.TrimRight(path, "/")
	if path = path[strings.LastIndexByte(path, '/')+1:]; path == "" {
		return "."
	}
	return path
}
