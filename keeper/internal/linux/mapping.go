package linux

import (
	"syscall"
	"unsafe"
)

// MapShared maps a file from its start. The address is for system calls only: see ReadInto and WriteFrom.
func MapShared(fd int, size int64) (uintptr, error) {
	base, _, e := syscall.Syscall6(syscall.SYS_MMAP, 0, uintptr(size), syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_SHARED, uintptr(fd), 0)
	if e != 0 {
		return 0, e
	}
	return base, nil
}

// Unmap undoes MapShared.
func Unmap(base uintptr, size int64) {
	_, _, _ = syscall.Syscall(syscall.SYS_MUNMAP, base, uintptr(size), 0)
}

// ReadInto reads into a mapping. An unavailable page causes EFAULT or a short read.
func ReadInto(fd int, to uintptr, limit int) (int, error) {
	for {
		n, _, e := syscall.Syscall(syscall.SYS_READ, uintptr(fd), to, uintptr(limit))
		if e == syscall.EINTR {
			continue
		}
		if e != 0 {
			return 0, e
		}
		return int(n), nil
	}
}

// WriteFrom writes a head and then bytes of a mapping with one call.
func WriteFrom(fd int, head []byte, from uintptr, limit int64) (int, error) {
	type part struct{ base, size uintptr }
	parts := [2]part{{uintptr(unsafe.Pointer(unsafe.SliceData(head))), uintptr(len(head))}, {from, uintptr(limit)}}
	for {
		n, _, e := syscall.Syscall(syscall.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&parts)), 2)
		if e == syscall.EINTR {
			continue
		}
		if e != 0 {
			return 0, e
		}
		return int(n), nil
	}
}

// WriteAt writes everything or fails.
func WriteAt(fd int, data []byte, at int64) error {
	for len(data) > 0 {
		n, err := syscall.Pwrite(fd, data, at)
		if err == syscall.EINTR {
			continue
		}
		if err == nil && n == 0 {
			err = syscall.EIO
		}
		if err != nil {
			return err
		}
		data, at = data[n:], at+int64(n)
	}
	return nil
}
