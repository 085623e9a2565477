// Package rights does file work with a sandbox user's rights instead of the keeper's.
package rights

import (
	"runtime"
	"syscall"
	"unsafe"

	"skerry/keeper/internal/accounts"
)

// Do runs f on a thread that has the user's file rights, and lets the thread die afterwards.
//
// fsuid and not setresuid: a non-zero fsuid drops the capabilities that override file permissions, while the thread's
// real uid stays root's, so that the user's processes can't signal a thread of PID 1. Raw calls change one thread only;
// a goroutine that ends while locked takes its thread with it, so the rights leak nowhere.
func Do(u *accounts.User, f func() error) error {
	if u.UID == 0 {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := assume(u); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func assume(u *accounts.User) error {
	groups := unsafe.Pointer(nil)
	if len(u.Groups) > 0 {
		groups = unsafe.Pointer(&u.Groups[0])
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(u.Groups)), uintptr(groups), 0); e != 0 {
		return e
	}
	// These two return the old value and no error: only asking again (with an id that can't be set) tells.
	const ask = ^uintptr(0)
	syscall.RawSyscall(syscall.SYS_SETFSGID, uintptr(u.GID), 0, 0)
	syscall.RawSyscall(syscall.SYS_SETFSUID, uintptr(u.UID), 0, 0)
	gid, _, _ := syscall.RawSyscall(syscall.SYS_SETFSGID, ask, 0, 0)
	uid, _, _ := syscall.RawSyscall(syscall.SYS_SETFSUID, ask, 0, 0)
	if uint32(gid) != u.GID || uint32(uid) != u.UID {
		return syscall.EPERM
	}
	return nil
}

// Enter tells whether a user may make dir the current directory: "dir/." needs the right to search dir.
func Enter(u *accounts.User, dir string) error {
	var st syscall.Stat_t
	return Do(u, func() error { return syscall.Stat(dir+"/.", &st) })
}
