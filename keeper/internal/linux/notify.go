package linux

import (
	"syscall"
	"unsafe"
)

const (
	seccompSetModeFilter    = 1
	seccompNewListener      = 1 << 3
	seccompWaitKillable     = 1 << 5 // since Linux 5.19: a caller that was received waits for the answer, also at a signal
	seccompReceive          = 0xc0502100
	seccompSend             = 0xc0182101
	seccompAddFD            = 0x40182103
	seccompUserNotifyResume = 1
	seccompAddFDSend        = 2
)

// Notification is a system call that a filter stopped.
type Notification struct {
	id     uint64
	Thread uint32 // the caller
	_      uint32
	Call   int32
	_      uint32 // architecture
	_      uint64 // instruction pointer
	Args   [6]uint64
}

type response struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// NotifyFilter puts a filter on the calling thread and the processes that it starts, and returns the fd on which the
// calls arrive that the filter stops.
func NotifyFilter(program []syscall.SockFilter) (int, error) {
	p := syscall.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, e := syscall.RawSyscall(
		SysSeccomp, seccompSetModeFilter, seccompNewListener|seccompWaitKillable, uintptr(unsafe.Pointer(&p)))
	if e != 0 {
		return -1, e
	}
	return int(fd), nil
}

// ReceiveNotification waits for the next stopped call.
func ReceiveNotification(fd int) (*Notification, error) {
	n := new(Notification)
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), seccompReceive, uintptr(unsafe.Pointer(n))); e != 0 {
		return nil, e
	}
	return n, nil
}

// ContinueNotification lets the kernel execute the call. The registers decide, which the caller cannot change any more.
func ContinueNotification(fd int, n *Notification) {
	send(fd, response{id: n.id, flags: seccompUserNotifyResume})
}

// RefuseNotification makes the call fail.
func RefuseNotification(fd int, n *Notification, errno syscall.Errno) {
	send(fd, response{id: n.id, errno: -int32(errno)})
}

func send(fd int, r response) {
	// an error means that the caller is gone
	_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), seccompSend, uintptr(unsafe.Pointer(&r)))
}

// AnswerWithFD gives the caller a copy of a file, whose number the call returns.
func AnswerWithFD(fd int, n *Notification, source int, closeOnExec bool) error {
	add := struct {
		id                      uint64
		flags, source, fd, mode uint32
	}{id: n.id, flags: seccompAddFDSend, source: uint32(source)}
	if closeOnExec {
		add.mode = syscall.O_CLOEXEC
	}
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), seccompAddFD, uintptr(unsafe.Pointer(&add))); e != 0 {
		return e
	}
	return nil
}
