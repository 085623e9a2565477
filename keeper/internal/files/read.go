package files

import (
	"syscall"

	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/iolimit"
	"skerry/keeper/internal/linux"
)

// fdDir is /proc/self/fd, opened before any other program could run.
var fdDir = -1

// Prepare opens the keeper's own fd directory.
func Prepare() (err error) {
	fdDir, err = syscall.Open("/proc/self/fd", linux.OPath|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	return err
}

// Open opens a regular file for reading and returns its size. It opens the file through the O_PATH fd that it has
// examined: nothing else is ever opened, not even for a moment.
func (fs *UserFS) Open(path string) (file iolimit.File, size int64, err error) {
	if path, err = fs.absolute(path); err != nil {
		return -1, 0, err
	}
	err = asuser.Do(fs.User, func() error {
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
		if isOwnProcFile(name) {
			return syscall.EACCES
		}
		const flags = syscall.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_CLOEXEC
		fd, err := Reopen(name, flags)
		if err != nil {
			return err
		}
		file, size = iolimit.File(fd), st.Size
		return nil
	})
	return file, size, err
}
