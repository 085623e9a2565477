// Package asuser does file work with the rights of a sandbox user instead of the keeper's.
//
// Two locked threads take the user's fsuid, fsgid and groups for each job. Only path operations run there; bytes are
// then moved through the fd that the job opened, without the user's rights.
package asuser

import (
	"errors"
	"runtime"
	"syscall"
	"unsafe"

	"skerry/keeper/internal/accounts"
)

// workers is the number of such threads. They start once and never end: a Go program dies when it cannot create a
// thread, which happens when the sandbox has used up its processes, and this program is PID 1.
const workers = 2

// ErrUser means that the sandbox's user namespace does not contain the user ID.
var ErrUser = errors.New("the user ID is outside the sandbox's range")

type work struct {
	user *accounts.User
	f    func() error
	done chan error
}

var (
	queue = make(chan work)
	root  = make(chan struct{}, workers) // root's jobs need no such thread, but block one as well
)

// Prepare starts the threads.
func Prepare() {
	for range workers {
		go serve()
	}
}

// Do runs f with the user's file rights. f must be short and must not call Do.
//
// It sets fsuid rather than calling setresuid: a non-zero fsuid drops the capabilities that override file permissions,
// while the thread's real uid stays root's, so that the user's processes cannot signal a thread of PID 1. Raw system
// calls change one thread only, and no other goroutine ever runs on it.
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

// assume gives the current thread the user's file rights, which it keeps until the next job.
func assume(u *accounts.User) error {
	groups := unsafe.Pointer(nil)
	if len(u.Groups) > 0 {
		groups = unsafe.Pointer(&u.Groups[0])
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(u.Groups)), uintptr(groups), 0); e != 0 {
		return ErrUser
	}
	// Both calls return the previous value and never an error; reading the value back with an invalid ID shows the
	// result.
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

// Enter checks whether a user may make dir the current directory: "dir/." needs the right to search dir.
func Enter(u *accounts.User, dir string) error {
	var st syscall.Stat_t
	return Do(u, func() error { return syscall.Stat(dir+"/.", &st) })
}
