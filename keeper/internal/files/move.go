package files

import (
	"syscall"

	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/linux"
)

// PlaceOptions control the target of a copy or move.
type PlaceOptions struct {
	Overwrite bool // replace an existing entry, unless it is a directory with contents
	Parents   bool // make missing parents
}

func (o PlaceOptions) flags() int {
	if o.Overwrite {
		return 0
	}
	return linux.NoReplace
}

// Move renames. It returns syscall.EXDEV between file systems and for a directory of the image.
func (fs *UserFS) Move(from, to string, o PlaceOptions) (info *Info, err error) {
	err = asuser.Do(fs.User, func() error {
		info, err = fs.rename(from, to, o)
		return err
	})
	return info, err
}

// MoveAcross copies and removes.
func (fs *UserFS) MoveAcross(from, to string, o PlaceOptions) (*Info, error) {
	info, err := fs.copy(from, to, o, false, true)
	if err == nil {
		err = fs.Remove(from, true)
	}
	return info, err
}

// rename renames within a file system. The error says whether the source or the target is the cause.
func (fs *UserFS) rename(from, to string, o PlaceOptions) (*Info, error) {
	fromDir, fromName, err := fs.parent(from)
	if err != nil {
		return nil, err
	}
	defer closeAll(fromDir)
	if special(fromName) {
		return nil, syscall.EBUSY
	}
	var st syscall.Stat_t
	if err := linux.Lstatat(fromDir, fromName, &st); err != nil { // before making parents for it
		return nil, err
	}
	toDir, toName, err := fs.place(to, o.Parents)
	if err != nil {
		return nil, target(err)
	}
	defer closeAll(toDir)
	if special(toName) {
		return nil, target(syscall.EEXIST)
	}
	err = linux.Rename(fromDir, fromName, toDir, toName, o.flags())
	if err == syscall.EEXIST || err == syscall.ENOTEMPTY || err == syscall.EISDIR || err == syscall.ENOTDIR {
		err = target(err)
	}
	if err != nil {
		return nil, err
	}
	return describe(toDir, toName)
}

// Link makes a symbolic or a hard link to a target.
func (fs *UserFS) Link(target, path string, hard bool) (info *Info, err error) {
	err = asuser.Do(fs.User, func() error {
		dir, name, err := fs.parent(path)
		if err != nil {
			return err
		}
		defer closeAll(dir)
		if special(name) {
			return syscall.EEXIST
		}
		if hard {
			err = fs.hardLink(target, dir, name)
		} else if target == "" {
			err = syscall.ENOENT
		} else {
			err = linux.Symlinkat(target, dir, name)
		}
		if err == nil {
			info, err = describe(dir, name)
		}
		return err
	})
	return info, err
}

func (fs *UserFS) hardLink(target string, dir int, name string) error {
	targetDir, targetName, err := fs.parent(target)
	if err != nil {
		return err
	}
	defer closeAll(targetDir)
	return linux.Linkat(targetDir, targetName, dir, name)
}
