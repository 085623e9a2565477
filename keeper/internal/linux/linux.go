// Package linux provides system calls that the syscall package lacks. Package golang.org/x/sys is not used: the keeper
// has no dependencies.
package linux

import (
	"os"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

const (
	prSetDumpable       = 4
	prSetTimerSlack     = 29
	prSetChildSubreaper = 36
	pAll                = 0
	sysCloseRange       = 436
	closeRangeCloexec   = 4
	wNoWait             = 0x01000000
	fionread            = 0x541b
	pollRdHup           = 0x2000
	pollHup             = 0x10
	pollErr             = 0x8

	// AtRemoveDir is the flag of Unlinkat for directories.
	AtRemoveDir = 0x200
)

func prctl(option, value uintptr) error {
	if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, option, value, 0, 0, 0, 0); e != 0 {
		return e
	}
	return nil
}

// SetNonDumpable closes /proc/<pid>/mem, fd, environ … of this process to all other processes in the sandbox, including
// root's.
func SetNonDumpable() error { return prctl(prSetDumpable, 0) }

// SetChildSubreaper makes this process the parent of orphaned descendants.
func SetChildSubreaper() error { return prctl(prSetChildSubreaper, 1) }

// SetTimerSlack sets how late the timers of this thread, and of processes that are forked from it, may be.
func SetTimerSlack(late time.Duration) error { return prctl(prSetTimerSlack, uintptr(late)) }

// CloseOnExecFrom marks all fds from the given one on, so that commands inherit none of them.
func CloseOnExecFrom(fd int) {
	if _, _, e := syscall.RawSyscall(sysCloseRange, uintptr(fd), ^uintptr(0)>>32, closeRangeCloexec); e == 0 {
		return
	}
	for ; fd < 1024; fd++ {
		syscall.CloseOnExec(fd)
	}
}

// NextExit waits until a child has ended and returns its pid without reaping it: no other process can get the pid until
// then. With block false it returns 0 if no child has ended.
func NextExit(block bool) (int, error) {
	var info [128]byte // siginfo_t: si_pid is the int32 at 16
	options := uintptr(syscall.WEXITED | wNoWait)
	if !block {
		options |= syscall.WNOHANG
	}
	for {
		_, _, e := syscall.Syscall6(syscall.SYS_WAITID, pAll, 0, uintptr(unsafe.Pointer(&info)), options, 0, 0)
		if e == syscall.EINTR {
			continue
		}
		if e != 0 {
			return 0, e
		}
		return int(*(*int32)(unsafe.Pointer(&info[16]))), nil
	}
}

// Pending returns the number of bytes that can be read from a pipe at once.
func Pending(fd int) int {
	var n int32
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), fionread, uintptr(unsafe.Pointer(&n))); e != 0 {
		return 0
	}
	return int(n)
}

// HungUp reports whether the peer of a socket has closed it, even while unread bytes remain.
func HungUp(fd int) bool {
	p := struct {
		fd              int32
		events, revents int16
	}{fd: int32(fd), events: pollRdHup}
	var zero syscall.Timespec
	_, _, e := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&zero)), 0, 0, 0)
	return e == 0 && p.revents&(pollRdHup|pollHup|pollErr) != 0
}

// CoarseClock returns the clock that the kernel stamps files with, in nanoseconds: later changes have no older time.
func CoarseClock() int64 {
	const clockRealtimeCoarse = 5
	var now syscall.Timespec
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockRealtimeCoarse, uintptr(unsafe.Pointer(&now)), 0)
	return now.Nano()
}

// RaiseOOMScore makes this process and its children better OOM victims than the keeper.
func RaiseOOMScore(by int) {
	const path = "/proc/self/oom_score_adj"
	old, _ := os.ReadFile(path)
	n := 0
	if len(old) > 1 {
		n, _ = strconv.Atoi(string(old[:len(old)-1]))
	}
	_ = os.WriteFile(path, []byte(strconv.Itoa(min(1000, n+by))), 0)
}

// Unlinkat removes a file or, with AtRemoveDir, a directory.
func Unlinkat(dir int, name string, flags int) error {
	path, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, e := syscall.Syscall(syscall.SYS_UNLINKAT, uintptr(dir), uintptr(unsafe.Pointer(path)), uintptr(flags))
	if e != 0 {
		return e
	}
	return nil
}

// Rmdirat removes an empty directory.
func Rmdirat(dir int, name string) error { return Unlinkat(dir, name, AtRemoveDir) }
