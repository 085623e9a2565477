package files

import (
	"errors"
	"strings"
	"syscall"

	"skerry/keeper/internal/linux"
)

const (
	openLevels     = 16
	directoryFlags = syscall.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_CLOEXEC
)

// errKernelFS keeps recursive work out of /proc and /sys.
var errKernelFS = errors.New("a kernel file system")

// descent walks down into directories and up again by their fds: no path is resolved twice or too long, and entries
// that change meanwhile cannot redirect it. Only the deepest sixteen fds stay open; the others are found again through
// "..", and must be the same directories.
type descent struct{ levels []level }

type level struct {
	fd       int // -1: closed to save fds; reopened through the ".." of the level below
	dev, ino uint64
	name     string
}

// begin takes ownership of a directory's fd.
func (d *descent) begin(fd int) error { return d.push(fd, "") }

func (d *descent) fd() int { return d.levels[len(d.levels)-1].fd }

func (d *descent) enter(name string) error {
	fd, err := syscall.Openat(d.fd(), name, directoryFlags, 0)
	if err != nil {
		return err
	}
	return d.push(fd, name)
}

// push enters an open directory, unless it belongs to the keeper or to a kernel file system, and closes the fd that is
// too far up.
func (d *descent) push(fd int, name string) error {
	var st syscall.Stat_t
	err := syscall.Fstat(fd, &st)
	switch {
	case err != nil:
	case isOwnProcFile(fd):
		err = syscall.EACCES
	case len(d.levels) > 0 && d.levels[len(d.levels)-1].dev != st.Dev && linux.OnKernel(fd):
		err = errKernelFS
	}
	if err != nil {
		_ = syscall.Close(fd)
		return err
	}
	d.levels = append(d.levels, level{fd, st.Dev, st.Ino, name})
	if n := len(d.levels) - openLevels; n > 0 {
		closeAll(d.levels[n-1].fd)
		d.levels[n-1].fd = -1
	}
	return nil
}

// leave goes up and returns the name of the directory that it left.
func (d *descent) leave() (string, error) {
	last := d.levels[len(d.levels)-1]
	defer closeAll(last.fd)
	d.levels = d.levels[:len(d.levels)-1]
	if len(d.levels) == 0 || d.fd() >= 0 {
		return last.name, nil
	}
	fd, err := syscall.Openat(last.fd, "..", directoryFlags, 0)
	if err != nil {
		return last.name, err
	}
	above := &d.levels[len(d.levels)-1]
	var st syscall.Stat_t
	if err = syscall.Fstat(fd, &st); err != nil || st.Dev != above.dev || st.Ino != above.ino {
		_ = syscall.Close(fd)
		return last.name, syscall.ESTALE // the directory was moved meanwhile
	}
	above.fd = fd
	return last.name, nil
}

// path returns the path from the start.
func (d *descent) path() string {
	var b strings.Builder
	for i := 1; i < len(d.levels); i++ {
		b.WriteString(d.levels[i].name + "/")
	}
	return b.String()
}

func (d *descent) close() {
	for _, l := range d.levels {
		closeAll(l.fd)
	}
	d.levels = nil
}
