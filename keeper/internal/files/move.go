package files

import (
	"syscall"

	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/rights"
)

// PlaceOptions say what may happen at the place where something new is to be.
type PlaceOptions struct {
	Overwrite bool // what is there is replaced, unless it is a directory with something in it
	Parents   bool // missing directories above are made
}

func (o PlaceOptions) flags() int {
	if o.Overwrite {
		return 0
	}
	return linux.NoReplace
}

// Move renames. Between file systems, and with a directory of the image, it can't: syscall.EXDEV.
func (a *Area) Move(from, to string, o PlaceOptions) (info *Info, err error) {
	err = rights.Do(a.User, func() error {
		info, err = a.rename(from, to, o)
		return err
	})
	return info, err
}

// MoveAcross copies and removes.
func (a *Area) MoveAcross(from, to string, o PlaceOptions) (*Info, error) {
	info, err := a.copy(from, to, o, false, true)
	if err == nil {
		err = a.Remove(from, true)
	}
	return info, err
}

func (a *Area) rename(from, to string, o PlaceOptions) (*Info, error) {
	fromDir, fromName, err := a.parent(from)
	if err != nil {
		return nil, err
	}
	defer closeAll(fromDir)
	if special(fromName) {
		return nil, syscall.EBUSY
	}
	var st syscall.Stat_t
	if err := linux.Lstatat(fromDir, fromName, &st); err != nil { // before directories are made for it
		return nil, err
	}
	toDir, toName, err := a.place(to, o.Parents)
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

// Link makes a name for a target: a link that says where it is, or another name of the same file.
func (a *Area) Link(target, path string, hard bool) (info *Info, err error) {
	err = rights.Do(a.User, func() error {
		dir, name, err := a.parent(path)
		if err != nil {
			return err
		}
		defer closeAll(dir)
		if special(name) {
			return syscall.EEXIST
		}
		if hard {
			err = a.hardLink(target, dir, name)
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

func (a *Area) hardLink(target string, dir int, name string) error {
	targetDir, targetName, err := a.parent(target)
	if err != nil {
		return err
	}
	defer closeAll(targetDir)
	return linux.Linkat(targetDir, targetName, dir, name)
}
