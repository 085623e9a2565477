package files

import (
	"strconv"
	"syscall"

	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/rights"
)

// OpenDirectory opens a directory for work below it. With make, it and those above it are made where they are missing.
func (a *Area) OpenDirectory(path string, make bool) (fd int, err error) {
	if path, err = a.absolute(path); err != nil {
		return -1, err
	}
	if make {
		if _, err := a.Mkdir(path, nil, true); err == syscall.EEXIST {
			return -1, syscall.ENOTDIR
		} else if err != nil {
			return -1, err
		}
	}
	err = rights.Do(a.User, func() error {
		fd, err = linux.OpenBelow(path, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
		if err == syscall.EACCES && make { // what may be written to need not be readable
			fd, err = linux.OpenBelow(path, linux.OPath|syscall.O_DIRECTORY, 0)
		}
		return err
	})
	return fd, err
}

// Reopen opens what an O_PATH fd names: what was looked at, and nothing that took its place.
func Reopen(fd, flags int) (int, error) {
	return syscall.Openat(fdDir, strconv.Itoa(fd), flags|syscall.O_CLOEXEC, 0)
}

// Kind names a type of file.
func Kind(mode uint32) string { return kind(mode) }

// Absolute is where a path leads that may be relative.
func (a *Area) Absolute(path string) (string, error) { return a.absolute(path) }
