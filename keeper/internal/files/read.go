package files

import (
	"syscall"

	"skerry/keeper/internal/disk"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/rights"
)

// fdDir is /proc/self/fd, opened before the inside could run anything.
var fdDir = -1

// Prepare opens what this package needs of the keeper's own /proc.
func Prepare() (err error) {
	fdDir, err = syscall.Open("/proc/self/fd", linux.OPath|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	return err
}

// Open opens a regular file for reading, and returns its size. It looks first and opens then, through the fd that it
// looked at: nothing else is ever opened, not even for a moment.
func (a *Area) Open(path string) (file disk.File, size int64, err error) {
	if path, err = a.absolute(path); err != nil {
		return -1, 0, err
	}
	err = rights.Do(a.User, func() error {
		name, err := linux.OpenBelow(path, linux.OPath, 0)
		if err != nil {
			return err
		}
		defer func() { _ = syscall.Close(name) }()
		var st syscall.Stat_t
		if err := syscall.Fstat(name, &st); err != nil {
			return err
		}
		if err := regular(&st); err != nil {
			return err
		}
		if ourOwn(name) {
			return syscall.EACCES
		}
		const flags = syscall.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_CLOEXEC
		fd, err := Reopen(name, flags)
		if err != nil {
			return err
		}
		file, size = disk.File(fd), st.Size
		return nil
	})
	return file, size, err
}
