package linux

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

var names = map[string]syscall.Signal{
	"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "USR1": 10, "SEGV": 11,
	"USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15, "STKFLT": 16, "CHLD": 17, "CONT": 18, "STOP": 19, "TSTP": 20,
	"TTIN": 21, "TTOU": 22, "URG": 23, "XCPU": 24, "XFSZ": 25, "VTALRM": 26, "PROF": 27, "WINCH": 28, "IO": 29,
	"PWR": 30, "SYS": 31,
}

// Signal reads "TERM", "SIGTERM" or "15".
func Signal(text string) (syscall.Signal, bool) {
	if s, ok := names[strings.TrimPrefix(text, "SIG")]; ok {
		return s, true
	}
	n, err := strconv.Atoi(text)
	return syscall.Signal(n), err == nil && n >= 1 && n <= 64
}

// SignalName is the name without SIG, or the number where there is none.
func SignalName(s syscall.Signal) string {
	for name, number := range names {
		if number == s {
			return name
		}
	}
	return strconv.Itoa(int(s))
}

// Catchable is every signal that would end or stop a Go program and can be caught. Caught, none of them does; and what is
// caught, unlike what is ignored, is the default again after exec. SIGURG stays the Go runtime's own.
func Catchable() []os.Signal {
	var all []os.Signal
	for s := syscall.SIGHUP; s <= syscall.SIGSYS; s++ {
		if s != syscall.SIGKILL && s != syscall.SIGSTOP && s != syscall.SIGURG {
			all = append(all, s)
		}
	}
	return all
}

// Ignore and Default set what the Go runtime leaves alone: three real-time signals that C libraries use. The kernel does
// not protect PID 1 from a signal whose action is the default while its main thread happens to block it, as Go does for
// moments; an ignored one never reaches it. Launchers set them back, because exec keeps what is ignored.
func Ignore()  { setRest(1) }
func Default() { setRest(0) }

func setRest(handler uintptr) {
	action := struct{ handler, flags, restorer, mask uintptr }{handler: handler}
	for s := uintptr(32); s <= 34; s++ {
		syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, s, uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
	}
}
