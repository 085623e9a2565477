package files

import (
	"errors"
	"io"
	"os"
	"sort"
	"strings"
	"syscall"

	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/rights"
)

const (
	maxEntries = 100_000
	maxDepth   = 1000 // of a recursive removal: each level holds an fd
	batch      = 1024
	parentMode = 0o755
)

// Stat describes a path; a link is not followed.
func (a *Area) Stat(path string) (info *Info, err error) {
	err = rights.Do(a.User, func() error {
		dir, name, err := a.parent(path)
		if err != nil {
			return err
		}
		defer func() { _ = syscall.Close(dir) }()
		info, err = describe(dir, name)
		return err
	})
	return info, err
}

// List gives a directory's entries in order of their names to each, until it returns false. More says that there are
// others.
func (a *Area) List(path string, begin func(), each func(*Info) bool) (more bool, err error) {
	dir, names, err := a.names(path)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	more = len(names) > maxEntries
	names = names[:min(len(names), maxEntries)]
	begin()
	for len(names) > 0 {
		some := names[:min(len(names), batch)]
		names = names[len(some):]
		for _, info := range a.describeAll(int(dir.Fd()), some) {
			if !each(info) {
				return true, nil
			}
		}
	}
	return more, nil
}

func (a *Area) names(path string) (dir *os.File, names []string, err error) {
	if path, err = a.absolute(path); err != nil {
		return nil, nil, err
	}
	err = rights.Do(a.User, func() error {
		fd, err := linux.OpenBelow(path, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		dir = os.NewFile(uintptr(fd), "directory")
		names, err = dir.Readdirnames(maxEntries + 1)
		if len(names) == 0 && err != io.EOF {
			_ = dir.Close()
			return errors.Unwrap(err)
		}
		return nil
	})
	sort.Strings(names)
	return dir, names, err
}

// describeAll leaves out what vanished meanwhile.
func (a *Area) describeAll(dir int, names []string) (all []*Info) {
	_ = rights.Do(a.User, func() error {
		for _, name := range names {
			if info, err := describe(dir, name); err == nil {
				all = append(all, info)
			}
		}
		return nil
	})
	return all
}

// Mkdir makes a directory. With parents, missing ones above it are made too, and one that is there is fine.
func (a *Area) Mkdir(path string, mode *uint32, parents bool) (info *Info, err error) {
	err = rights.Do(a.User, func() error {
		info, err = a.mkdir(path, mode, parents)
		return err
	})
	return info, err
}

func (a *Area) mkdir(path string, mode *uint32, parents bool) (*Info, error) {
	dir, name, err := a.parent(path)
	if err == syscall.ENOENT && parents {
		if err = a.makeParents(path); err == nil {
			dir, name, err = a.parent(path)
		}
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = syscall.Close(dir) }()
	if name == "" {
		name = "."
	}
	err = syscall.Mkdirat(dir, name, parentMode)
	if err == nil && mode != nil {
		err = syscall.Fchmodat(dir, name, *mode, 0)
	}
	if err == syscall.EEXIST && parents && isDirectory(dir, name) {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return describe(dir, name)
}

// isDirectory follows a link: `mkdir -p` is content with a link to a directory.
func isDirectory(dir int, name string) bool {
	fd, err := syscall.Openat(dir, name, linux.OPath|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	_ = syscall.Close(fd)
	return true
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
		_ = syscall.Close(dir)
		if err != nil {
			return err
		}
	}
	return nil
}

// Remove removes a file, a link, an empty directory or, recursive, a whole tree. Links are removed, never followed.
func (a *Area) Remove(path string, recursive bool) error {
	return rights.Do(a.User, func() error {
		dir, name, err := a.parent(path)
		if err != nil {
			return err
		}
		defer func() { _ = syscall.Close(dir) }()
		if special(name) {
			return syscall.EINVAL
		}
		err = linux.Unlinkat(dir, name, 0)
		if err != syscall.EISDIR {
			return err
		}
		if err = linux.Rmdirat(dir, name); err != syscall.ENOTEMPTY || !recursive {
			return err
		}
		return removeTree(dir, name, 0)
	})
}

func removeTree(parent int, name string, depth int) error {
	if depth > maxDepth {
		return syscall.ENAMETOOLONG
	}
	const flags = syscall.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	fd, err := syscall.Openat(parent, name, flags, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), "directory")
	defer dir.Close()
	for {
		names, _ := dir.Readdirnames(batch)
		if len(names) == 0 {
			return linux.Rmdirat(parent, name)
		}
		for _, child := range names {
			if err := removeEntry(fd, child, depth); err != nil {
				return err
			}
		}
		_, _ = dir.Seek(0, 0) // entries move when others go
	}
}

func removeEntry(dir int, name string, depth int) error {
	err := linux.Unlinkat(dir, name, 0)
	if err == syscall.EISDIR {
		err = removeTree(dir, name, depth+1)
	}
	if err == syscall.ENOENT {
		return nil
	}
	return err
}
