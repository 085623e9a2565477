// Package rights does file work with a sandbox user's rights instead of the keeper's.
package rights

import (
	"errors"
	"runtime"
	"syscall"
	"unsafe"

	"skerry/keeper/internal/accounts"
)

// workers is how many such threads there are. They are made once and never end: a thread that can't be made, because the
// inside has used up its processes, ends a Go program, and this one is PID 1.
const workers = 2

// ErrUser means that the sandbox has no such user id: its user namespace ends below.
var ErrUser = errors.New("this user id is outside of the sandbox's range")

type work struct {
	user *accounts.User
	f    func() error
	done chan error
}

var (
	queue = make(chan work)
	root  = make(chan struct{}, workers) // root's work needs no such thread, but blocks one all the same
)

// Prepare starts the threads.
func Prepare() {
	for range workers {
		go serve()
	}
}

// Do runs f, which has to be short and must not call Do itself, on a thread that has the user's file rights.
//
// fsuid and not setresuid: a non-zero fsuid drops the capabilities that override file permissions, while the thread's
// real uid stays root's, so that the user's processes can't signal a thread of PID 1. Raw calls change one thread only,
// and no other goroutine ever runs on it.
func Do(u *accounts.User, f func() error) error {
	if u.UID == 0 {
		root <- struct{}{}
		defer func() { <-root }()
		return f()
	}
	w := work{u, f, make(chan error, 1)}
	queue <- w
	return <-w.done
}

func serve() {
	runtime.LockOSThread()
	for w := range queue {
		err := assume(w.user)
		if err == nil {
			err = w.f()
		}
		w.done <- err
	}
}

func assume(u *accounts.User) error {
	groups := unsafe.Pointer(nil)
	if len(u.Groups) > 0 {
		groups = unsafe.Pointer(&u.Groups[0])
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(u.Groups)), uintptr(groups), 0); e != 0 {
		return ErrUser
	}
	// These two return the old value and no error: only asking again (with an id that can't be set) tells.
	const ask = ^uintptr(0)
	syscall.RawSyscall(syscall.SYS_SETFSGID, uintptr(u.GID), 0, 0)
	syscall.RawSyscall(syscall.SYS_SETFSUID, uintptr(u.UID), 0, 0)
	gid, _, _ := syscall.RawSyscall(syscall.SYS_SETFSGID, ask, 0, 0)
	uid, _, _ := syscall.RawSyscall(syscall.SYS_SETFSUID, ask, 0, 0)
	if uint32(gid) != u.GID || uint32(uid) != u.UID {
		return ErrUser
	}
	return nil
}

// Enter tells whether a user may make dir the current directory: "dir/." needs the right to search dir.
func Enter(u *accounts.User, dir string) error {
	var st syscall.Stat_t
	return Do(u, func() error { return syscall.Stat(dir+"/.", &st) })
}
