package main

import (
	"runtime"
	"syscall"
	"unsafe"
)

var kinds = map[string]uintptr{
	"time": 0x80, "mount": 0x20000, "cgroup": 0x02000000, "uts": 0x04000000, "ipc": 0x08000000,
	"user": 0x10000000, "pid": 0x20000000, "net": 0x40000000,
}

func namespaceCalls() map[string]call {
	all := map[string]call{
		"setns":                             func() syscall.Errno { return sys(nr.setns, nowhere, 0) },
		"clone3":                            clone3,
		"clone of a user and net namespace": func() syscall.Errno { return clone(0x50000000) },
		"unshare with the upper half set":   func() syscall.Errno { return sys(nr.unshare, 1<<32|0x10000000) },
	}
	for kind, flag := range kinds {
		flag := flag
		all["unshare of a "+kind+" namespace"] = func() syscall.Errno { return alone(func() syscall.Errno { return sys(nr.unshare, flag) }) }
		if kind != "time" { // that bit is part of clone's exit signal
			all["clone of a "+kind+" namespace"] = func() syscall.Errno { return clone(flag) }
		}
	}
	return all
}

// alone: only a single-threaded process can leave a user namespace, and a Go program is not one. EINVAL means that the
// kernel examined the request, so the filter is open.
func alone(f func() syscall.Errno) syscall.Errno {
	runtime.LockOSThread()
	return f()
}

// clone forks; the child ends at once. Nothing of Go's runtime runs in it.
func clone(flags uintptr) syscall.Errno {
	pid, errno := rawClone(flags | uintptr(syscall.SIGCHLD))
	if errno != 0 {
		return errno
	}
	var status syscall.WaitStatus
	_, _ = syscall.Wait4(int(pid), &status, 0, nil)
	return 0
}

// clone3 passes invalid flags: ENOSYS must come before the kernel examines them.
func clone3() syscall.Errno {
	var args [11]uint64
	args[0] = 0x10000000
	return sys(435, uintptr(unsafe.Pointer(&args)), 1)
}
