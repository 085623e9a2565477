package files

import (
	"strconv"
	"syscall"

	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/linux"
)

// OpenDirectory opens a directory for work below it. With make, it creates the directory and its missing parents.
func (fs *UserFS) OpenDirectory(path string, make bool) (fd int, err error) {
	if path, err = fs.absolute(path); err != nil {
		return -1, err
	}
	if make {
		if _, err := fs.Mkdir(path, nil, true); err == syscall.EEXIST {
			return -1, syscall.ENOTDIR
		} else if err != nil {
			return -1, err
		}
	}
	err = asuser.Do(fs.User, func() error {
		fd, err = linux.OpenBelow(path, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
		if err == syscall.EACCES && make { // a writable directory need not be readable
			fd, err = linux.OpenBelow(path, linux.OPath|syscall.O_DIRECTORY, 0)
		}
		return err
	})
	return fd, err
}

// Reopen opens the file of an O_PATH fd: the examined file, and never one that took its place.
func Reopen(fd, flags int) (int, error) {
	return syscall.Openat(fdDir, strconv.Itoa(fd), flags|syscall.O_CLOEXEC, 0)
}

// Kind returns the name of a file type.
func Kind(mode uint32) string { return kind(mode) }

// Absolute resolves a path that may be relative.
func (fs *UserFS) Absolute(path string) (string, error) { return fs.absolute(path) }
