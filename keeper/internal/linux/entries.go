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

// Rename moves a name.
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

// ChownFD changes who owns what an O_PATH fd stands for.
func ChownFD(fd, uid, gid int) error { return syscall.Fchownat(fd, "", uid, gid, atEmptyPath) }

// SetMtime sets when what an O_PATH or other fd stands for was last changed.
func SetMtime(fd int, when syscall.Timespec) error {
	times := [2]syscall.Timespec{{Nsec: utimeOmit}, when}
	var nothing [1]byte
	_, _, e := syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(fd), uintptr(unsafe.Pointer(&nothing)),
		uintptr(unsafe.Pointer(&times)), atEmptyPath, 0, 0)
	return orNil(e)
}

// Extent finds the next part of a file that is no hole, from an offset on; syscall.ENXIO: there is none.
func Extent(fd int, from int64) (start, end int64, err error) {
	if start, err = syscall.Seek(fd, from, seekData); err != nil {
		return 0, 0, err
	}
	end, err = syscall.Seek(fd, start, seekHole)
	return start, end, err
}

// CopyRange has the kernel copy, or share, some bytes between two files at the same offset.
func CopyRange(from, to int, offset, length int64) (int64, error) {
	in, out := offset, offset
	n, _, e := syscall.Syscall6(sysCopyFileRange, uintptr(from), uintptr(unsafe.Pointer(&in)), uintptr(to),
		uintptr(unsafe.Pointer(&out)), uintptr(length), 0)
	if e != 0 {
		return 0, e
	}
	return int64(n), nil
}

// OnKernel says whether an fd lies in procfs or sysfs, whose files are not stored but made up.
func OnKernel(fd int) bool {
	var st syscall.Statfs_t
	return syscall.Fstatfs(fd, &st) == nil && (st.Type == procMagic || st.Type == sysfsMagic)
}
