package files

import (
	"strings"
	"syscall"

	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/linux"
)

// Stat describes a path. It describes a link itself unless follow is set.
func (fs *UserFS) Stat(path string, follow bool) (info *Info, err error) {
	if path, err = fs.absolute(path); err != nil {
		return nil, err
	}
	err = asuser.Do(fs.User, func() error {
		if follow {
			info, err = followed(path)
			return err
		}
		dir, name, err := fs.parent(path)
		if err != nil {
			return err
		}
		defer closeAll(dir)
		if info, err = describe(dir, name); err == nil && fs.Attributes {
			info.Attributes = readAttributes(dir, name)
		}
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
	if isOwnProcFile(fd) {
		return nil, syscall.EACCES
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return nil, err
	}
	return newInfo(base(path), &st), nil
}

// base returns the last name of a path; for the root it is ".".
func base(path string) string {
	path = strings.TrimRight(path, "/")
	if path = path[strings.LastIndexByte(path, '/')+1:]; path == "" {
		return "."
	}
	return path
}
