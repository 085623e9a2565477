package linux

import (
	"syscall"
	"unsafe"
)

// Flags of Rename.
const (
	NoReplace = 1
	Exchange  = 2
)

const (
	atEmptyPath = 0x1000
	sysfsMagic  = 0x62656572
	seekData    = 3
	seekHole    = 4
	utimeOmit   = (1 << 30) - 2
)

// Rename renames an entry, with flags.
func Rename(fromDir int, from string, toDir int, to string, flags int) error {
	a, err := syscall.BytePtrFromString(from)
	if err != nil {
		return err
	}
	b, err := syscall.BytePtrFromString(to)
	if err != nil {
		return err
	}
	_, _, e := syscall.Syscall6(sysRenameat2, uintptr(fromDir), uintptr(unsafe.Pointer(a)), uintptr(toDir),
		uintptr(unsafe.Pointer(b)), uintptr(flags), 0)
	return orNil(e)
}

// ChownFD changes the owner of the file of an fd, which may be an O_PATH fd.
func ChownFD(fd, uid, gid int) error { return syscall.Fchownat(fd, "", uid, gid, atEmptyPath) }

// SetMtime sets the mtime of the file of an fd, which may be an O_PATH fd.
func SetMtime(fd int, when syscall.Timespec) error {
	times := [2]syscall.Timespec{{Nsec: utimeOmit}, when}
	var nothing [1]byte
	_, _, e := syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(fd), uintptr(unsafe.Pointer(&nothing)),
		uintptr(unsafe.Pointer(&times)), atEmptyPath, 0, 0)
	return orNil(e)
}

// SetTimesAt sets the atime and mtime of a path without following a link, or of the file of `dir` if the path is empty.
func SetTimesAt(dir int, path string, times []syscall.Timespec) error {
	name, err := syscall.BytePtrFromString(path)
	if err != nil {
		return err
	}
	flags := uintptr(atSymlinkNoFollow)
	if path == "" {
		flags = atEmptyPath
	}
	_, _, e := syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(dir), uintptr(unsafe.Pointer(name)),
		uintptr(unsafe.Pointer(&times[0])), flags, 0, 0)
	return orNil(e)
}

// Extent finds the next extent at or after an offset that is not a hole; syscall.ENXIO: none.
func Extent(fd int, from int64) (start, end int64, err error) {
	if start, err = syscall.Seek(fd, from, seekData); err != nil {
		return 0, 0, err
	}
	end, err = syscall.Seek(fd, start, seekHole)
	return start, end, err
}

// CopyRange lets the kernel copy or share bytes between two files at the same offset.
func CopyRange(from, to int, offset, length int64) (int64, error) {
	in, out := offset, offset
	n, _, e := syscall.Syscall6(sysCopyFileRange, uintptr(from), uintptr(unsafe.Pointer(&in)), uintptr(to),
		uintptr(unsafe.Pointer(&out)), uintptr(length), 0)
	if e != 0 {
		return 0, e
	}
	return int64(n), nil
}

// OnKernel reports whether an fd is in procfs or sysfs; their files are generated, not stored.
func OnKernel(fd int) bool {
	var st syscall.Statfs_t
	return syscall.Fstatfs(fd, &st) == nil && (st.Type == procMagic || st.Type == sysfsMagic)
}
