package main

import (
	"os"
	"syscall"
	"unsafe"
)

const tiocsti = 0x5412

func processCalls() map[string]call {
	self := uintptr(os.Getpid())
	return map[string]call{
		"process_vm_readv":                       func() syscall.Errno { return sys(nr.processVMReadv, self, vector(), 1, vector(), 1, 0) },
		"process_vm_writev":                      func() syscall.Errno { return sys(nr.processVMWritev, self, vector(), 1, vector(), 1, 0) },
		"process_madvise":                        func() syscall.Errno { return sys(440, nowhere, 0, 0, 0, 0) },
		"process_mrelease":                       func() syscall.Errno { return sys(448, nowhere, 0) },
		"kcmp":                                   func() syscall.Errno { return sys(nr.kcmp, self, self, 0, 0, 0) },
		"pidfd_getfd":                            pidfdGetfd,
		"personality that makes read imply exec": func() syscall.Errno { return sys(nr.personality, 0x0400000) },
		"personality that maps page zero":        func() syscall.Errno { return sys(nr.personality, 0x0100000) },
		"ioctl TIOCSTI":                          func() syscall.Errno { return tiocstiOn(tiocsti) },
		"ioctl TIOCSTI with the upper half set":  func() syscall.Errno { return tiocstiOn(1<<32 | tiocsti) },
		"setrlimit of core dumps":                coreLimit,
		"chroot":                                 func() syscall.Errno { return sys(nr.chroot, text("/")) },
		"mount":                                  func() syscall.Errno { return sys(nr.mount, text("none"), text("/no/such/place"), text("tmpfs"), 0, 0) },
		"umount2":                                func() syscall.Errno { return sys(nr.umount2, text("/no/such/place"), 0) },
		"pivot_root":                             func() syscall.Errno { return sys(nr.pivotRoot, text("/no/such/place"), text("/no/such/place")) },
		"open_tree":                              func() syscall.Errno { return sys(428, atFDCWD, text("/no/such/place"), 0) },
		"move_mount":                             func() syscall.Errno { return sys(429, nowhere, text(""), nowhere, text(""), 4) },
		"fsopen":                                 func() syscall.Errno { return sys(430, text("no_such_file_system"), 0) },
		"fsconfig":                               func() syscall.Errno { return sys(431, nowhere, 6, 0, 0, 0) },
		"fsmount":                                func() syscall.Errno { return sys(432, nowhere, 0, 0) },
		"fspick":                                 func() syscall.Errno { return sys(433, atFDCWD, text("/no/such/place"), 0) },
		"mount_setattr":                          func() syscall.Errno { return sys(442, atFDCWD, text("/no/such/place"), 0, room(32), 32) },
		"open_tree_attr":                         func() syscall.Errno { return sys(467, atFDCWD, text("/no/such/place"), 0, 0, 0) },
	}
}

func vector() uintptr {
	v := [2]uintptr{room(8), 8}
	return uintptr(unsafe.Pointer(&v[0]))
}

func pidfdGetfd() syscall.Errno {
	fd, _, errno := syscall.RawSyscall(434, uintptr(os.Getpid()), 0, 0)
	if errno != 0 {
		return errno
	}
	return sys(438, fd, 0, 0)
}

// tiocstiOn types a letter into a terminal that belongs to this process.
func tiocstiOn(request uintptr) syscall.Errno {
	main, err := syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return syscall.EIO
	}
	var zero, number int32
	sys(nr.ioctl, uintptr(main), 0x40045431, uintptr(unsafe.Pointer(&zero)))
	sys(nr.ioctl, uintptr(main), 0x80045430, uintptr(unsafe.Pointer(&number)))
	_, _ = syscall.Setsid()
	side, err := syscall.Open("/dev/pts/"+digits(int(number)), syscall.O_RDWR, 0)
	if err != nil {
		return syscall.EIO
	}
	sys(nr.ioctl, uintptr(side), 0x540E, 0)
	return sys(nr.ioctl, uintptr(side), request, text("x"))
}

func digits(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return digits(n/10) + digits(n%10)
}

// coreLimit is refused silently: the limit must be 1 afterwards, whatever the call returns.
func coreLimit() syscall.Errno {
	limit := [2]uint64{0, 0}
	sys(nr.prlimit, 0, 4, uintptr(unsafe.Pointer(&limit)), 0)
	sys(nr.prlimit, 0, 1<<32|4, uintptr(unsafe.Pointer(&limit)), 0)
	var now [2]uint64
	sys(nr.prlimit, 0, 4, 0, uintptr(unsafe.Pointer(&now)))
	if now == [2]uint64{1, 1} {
		return syscall.EPERM
	}
	return 0
}
