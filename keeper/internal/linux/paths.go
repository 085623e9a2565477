package linux

import (
	"syscall"
	"unsafe"
)

const (
	sysOpenat2        = 437
	sysFaccessat2     = 439
	resolveNoMagic    = 0x02
	atFdCwd           = -0x64
	atEaccess         = 0x200
	atSymlinkNoFollow = 0x100
	oPath             = 0x200000
	procMagic         = 0x9fa0
	sysMagic          = 0x62656572
	groupMagic        = 0x27e0eb
	group2Magic       = 0x63677270
	accessWrite       = 2
	openatRetries     = 64
)

// OPath opens a name without opening the file.
const OPath = oPath

var empty byte // the empty path

type openHow struct{ flags, mode, resolve uint64 }

// OpenBelow opens a path chosen by a program inside. It refuses magic links: /proc/self is the keeper, and its fds lead
// to objects that the sandbox must not reach.
func OpenBelow(path string, flags int, mode uint32) (int, error) {
	return openat2(atFdCwd, path, flags, mode, resolveNoMagic)
}

// openat2 opens with resolve flags. The kernel answers EAGAIN when a rename elsewhere makes it unsure that a path
// stayed beneath; then it is tried again.
func openat2(dir int, path string, flags int, mode uint32, resolve uint64) (int, error) {
	name, err := syscall.BytePtrFromString(path)
	if err != nil {
		return -1, err
	}
	how := openHow{uint64(flags | syscall.O_CLOEXEC), uint64(mode), resolve}
	for range openatRetries {
		fd, _, e := syscall.Syscall6(sysOpenat2, uintptr(dir), uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&how)),
			unsafe.Sizeof(how), 0, 0)
		if e == 0 {
			return int(fd), nil
		}
		if e != syscall.EINTR && e != syscall.EAGAIN {
			return -1, e
		}
	}
	return -1, syscall.EAGAIN
}

// Writable checks whether the rights of this thread permit writing to the file of an fd.
func Writable(fd int) error {
	_, _, e := syscall.Syscall6(sysFaccessat2, uintptr(fd), uintptr(unsafe.Pointer(&empty)), accessWrite,
		atEaccess|atEmptyPath, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// Lstatat examines a name in a directory without following a link.
func Lstatat(dir int, name string, st *syscall.Stat_t) error {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, e := syscall.Syscall6(sysFstatat, uintptr(dir), uintptr(unsafe.Pointer(p)),
		uintptr(unsafe.Pointer(st)), atSymlinkNoFollow, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// Readlinkat returns the target of a link.
func Readlinkat(dir int, name string) (string, error) {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return "", err
	}
	buffer := make([]byte, 4096)
	n, _, e := syscall.Syscall6(syscall.SYS_READLINKAT, uintptr(dir), uintptr(unsafe.Pointer(p)),
		uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)), 0, 0)
	if e != 0 {
		return "", e
	}
	return string(buffer[:n]), nil
}

// OnProc reports whether an fd is in procfs.
func OnProc(fd int) bool {
	var st syscall.Statfs_t
	return syscall.Fstatfs(fd, &st) == nil && st.Type == procMagic
}

// Virtual reports whether an fd is in a file system with generated files: /proc, /sys, cgroups.
func Virtual(fd int) bool {
	var st syscall.Statfs_t
	if syscall.Fstatfs(fd, &st) != nil {
		return true
	}
	switch int64(st.Type) {
	case procMagic, sysMagic, groupMagic, group2Magic:
		return true
	}
	return false
}
