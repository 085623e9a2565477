package main

import (
	"syscall"
	"unsafe"
)

func sys(number uintptr, args ...uintptr) syscall.Errno {
	var a [6]uintptr
	copy(a[:], args)
	_, _, errno := syscall.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	return errno
}

func text(s string) uintptr {
	b := append([]byte(s), 0)
	return uintptr(unsafe.Pointer(&b[0]))
}

func room(n int) uintptr {
	b := make([]byte, n)
	return uintptr(unsafe.Pointer(&b[0]))
}

const (
	nowhere = ^uintptr(0) // -1 as an fd, an id, an address
	atFDCWD = ^uintptr(99)
)

// Numbers of the unified table, and of both architectures if they differ, come from numbers_*.go.
func kernelCalls() map[string]call {
	return map[string]call{
		"bpf":               func() syscall.Errno { return sys(nr.bpf, 0, room(128), 128) }, // an empty map
		"userfaultfd":       func() syscall.Errno { return sys(nr.userfaultfd, 1) },         // user faults only: no right needed
		"io_uring_setup":    func() syscall.Errno { return sys(425, 1, room(128)) },
		"io_uring_enter":    func() syscall.Errno { return sys(426, nowhere, 0, 0, 0, 0, 0) },
		"io_uring_register": func() syscall.Errno { return sys(427, nowhere, 0, 0, 0) },
		"perf_event_open":   perfEvent,
		"add_key":           func() syscall.Errno { return sys(nr.addKey, text("user"), text("skerry"), text("x"), 1, ^uintptr(1)) },
		"request_key":       func() syscall.Errno { return sys(nr.requestKey, text("user"), text("skerry"), 0, 0) },
		"keyctl":            func() syscall.Errno { return sys(nr.keyctl, 0, ^uintptr(2), 0) }, // the session keyring's id
		"init_module":       func() syscall.Errno { return sys(nr.initModule, 0, 0, text("")) },
		"finit_module":      func() syscall.Errno { return sys(nr.finitModule, nowhere, text(""), 0) },
		"delete_module":     func() syscall.Errno { return sys(nr.deleteModule, text("no_such_module"), 0x800) },
		"kexec_load":        func() syscall.Errno { return sys(nr.kexecLoad, 0, 0, 0, 0xFFFF) },
		"kexec_file_load":   func() syscall.Errno { return sys(nr.kexecFileLoad, nowhere, nowhere, 0, 0, 0xFFFF) },
		"reboot":            func() syscall.Errno { return sys(nr.reboot, 1, 2, 3, 0) }, // wrong magic numbers
		"swapon":            func() syscall.Errno { return sys(nr.swapon, text("/no/such/file"), 0) },
		"swapoff":           func() syscall.Errno { return sys(nr.swapoff, text("/no/such/file")) },
		"acct":              func() syscall.Errno { return sys(nr.acct, text("/no/such/file")) },
		"quotactl":          func() syscall.Errno { return sys(nr.quotactl, 0x80000700, text("/no/such/disk"), 0, room(128)) },
		"quotactl_fd":       func() syscall.Errno { return sys(443, nowhere, 0x80000700, 0, room(128)) },
		"settimeofday":      func() syscall.Errno { return sys(nr.settimeofday, 0, 0) },
		"clock_settime":     func() syscall.Errno { return sys(nr.clockSettime, 0, negativeTime()) },
		"clock_adjtime":     func() syscall.Errno { return sys(nr.clockAdjtime, 99, room(256)) },
		"adjtimex":          adjtimex,
		"sethostname":       func() syscall.Errno { return sys(nr.sethostname, text("x"), nowhere) },
		"setdomainname":     func() syscall.Errno { return sys(nr.setdomainname, text("x"), nowhere) },
		"syslog":            func() syscall.Errno { return sys(nr.syslog, 10, 0, 0) }, // the size of the log
		"fanotify_init":     func() syscall.Errno { return sys(nr.fanotifyInit, 0x200, 0) },
		"open_by_handle_at": openByHandle,
		"name_to_handle_at": func() syscall.Errno { return sys(nr.nameToHandle, atFDCWD, text("/"), handle(), room(4), 0) },
		"lookup_dcookie":    func() syscall.Errno { return sys(nr.lookupDcookie, 0, room(64), 64) },
		"vhangup":           func() syscall.Errno { return sys(nr.vhangup) },
		"statmount":         func() syscall.Errno { return sys(457, 0, 0, 0, 0) },
		"listmount":         func() syscall.Errno { return sys(458, 0, 0, 0, 0) },
		"memfd_secret":      func() syscall.Errno { return sys(447, 0) },
		"mbind":             func() syscall.Errno { return sys(nr.mbind, 0, 0, 0, 0, 0, 0) },
		"move_pages":        func() syscall.Errno { return sys(nr.movePages, 0, 0, 0, 0, 0, 0) },
		"migrate_pages":     func() syscall.Errno { return sys(nr.migratePages, 0, 0, 0, 0) },
		"nfsservctl":        func() syscall.Errno { return sys(nr.nfsservctl, 0, 0, 0) },
		"lsm_set_self_attr": func() syscall.Errno { return sys(460, 0, 0, 0, 0) },
	}
}

func perfEvent() syscall.Errno {
	var attr [128]byte
	*(*uint32)(unsafe.Pointer(&attr[0])) = 1 // software
	*(*uint32)(unsafe.Pointer(&attr[4])) = 128
	*(*uint64)(unsafe.Pointer(&attr[40])) = 1 | 1<<5 | 1<<6 // disabled, without the kernel and the hypervisor
	return sys(nr.perfEventOpen, uintptr(unsafe.Pointer(&attr)), 0, nowhere, nowhere, 0)
}

func adjtimex() syscall.Errno {
	var timex [256]byte
	*(*uint32)(unsafe.Pointer(&timex[0])) = 0x0002 // ADJ_FREQUENCY: the kernel clips values that are too large, so query first
	if errno := sys(nr.adjtimex, room(256)); errno != 0 {
		return errno // even the query is refused
	}
	if syscall.Getuid() == 0 && syscall.Getpid() != 1 && !inside() {
		return 0 // on a host that permits it, the query is sufficient
	}
	return sys(nr.adjtimex, uintptr(unsafe.Pointer(&timex)))
}

func inside() bool {
	var st syscall.Stat_t
	return syscall.Stat("/run/skerry/bin/skerry-keeper", &st) == nil
}

func negativeTime() uintptr {
	t := [2]int64{0, -1}
	return uintptr(unsafe.Pointer(&t[0]))
}

func handle() uintptr {
	h := make([]byte, 8+128)
	*(*uint32)(unsafe.Pointer(&h[0])) = 128
	return uintptr(unsafe.Pointer(&h[0]))
}

// openByHandle is the "shocker" escape from a container: inode 2 of the file system of /.
func openByHandle() syscall.Errno {
	h := make([]byte, 8+8)
	*(*uint32)(unsafe.Pointer(&h[0])) = 8
	*(*uint32)(unsafe.Pointer(&h[4])) = 1
	*(*uint32)(unsafe.Pointer(&h[8])) = 2
	root, err := syscall.Open("/", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return syscall.EIO
	}
	return sys(nr.openByHandle, uintptr(root), uintptr(unsafe.Pointer(&h[0])), 0)
}
