package main

import "syscall"

func rawClone(flags uintptr) (pid uintptr, errno syscall.Errno)

func int80(number uintptr) uintptr

// The two other entry points of an x86-64 kernel have separate tables, which no rule of the profile would fit.
func abiCalls() map[string]call {
	return map[string]call{
		"getpid by the 32-bit ABI": func() syscall.Errno { return answer(int80(20)) },
		"mount by the 32-bit ABI":  func() syscall.Errno { return answer(int80(21)) },
		"keyctl by the 32-bit ABI": func() syscall.Errno { return answer(int80(288)) },
		"getpid by the x32 ABI":    func() syscall.Errno { return sys(0x40000000 + 39) },
		"mount by the x32 ABI":     func() syscall.Errno { return sys(0x40000000+165, 0, 0, 0, 0, 0) },
		"iopl":                     func() syscall.Errno { return sys(172, 3) },
		"ioperm":                   func() syscall.Errno { return sys(173, 0x80, 1, 1) },
		"modify_ldt":               func() syscall.Errno { return sys(154, 0, room(16), 16) },
		"uselib":                   func() syscall.Errno { return sys(134, text("/no/such/file")) },
		"create_module":            func() syscall.Errno { return sys(174, 0, 0) },
		"_sysctl":                  func() syscall.Errno { return sys(156, 0) },
	}
}

func answer(value uintptr) syscall.Errno {
	if code := int32(value); code < 0 && code > -4096 {
		return syscall.Errno(-code)
	}
	return 0
}
