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

// Signal parses "TERM", "SIGTERM" or "15".
func Signal(text string) (syscall.Signal, bool) {
	if s, ok := names[strings.TrimPrefix(text, "SIG")]; ok {
		return s, true
	}
	n, err := strconv.Atoi(text)
	return syscall.Signal(n), err == nil && n >= 1 && n <= 64
}

// SignalName returns the name without SIG, or the number of a signal without a name.
func SignalName(s syscall.Signal) string {
	for name, number := range names {
		if number == s {
			return name
		}
	}
	return strconv.Itoa(int(s))
}

// Catchable returns every signal that can be caught and would otherwise end or stop a Go program. A caught signal does
// neither and, unlike an ignored one, has the default action again after exec. SIGURG is excluded: the Go runtime uses
// it.
func Catchable() []os.Signal {
	var all []os.Signal
	for s := syscall.SIGHUP; s <= syscall.SIGSYS; s++ {
		if s != syscall.SIGKILL && s != syscall.SIGSTOP && s != syscall.SIGURG {
			all = append(all, s)
		}
	}
	return all
}

// Ignore and Default set the action of three real-time signals that C libraries use and that the Go runtime does not
// handle. The kernel does not protect PID 1 from a signal with the default action while its main thread blocks it, as
// Go does for moments; an ignored signal never arrives. Launchers restore the default, because ignored signals stay
// ignored across exec.
func Ignore()  { setRest(1) }
func Default() { setRest(0) }

func setRest(handler uintptr) {
	action := struct{ handler, flags, restorer, mask uintptr }{handler: handler}
	for s := uintptr(32); s <= 34; s++ {
		syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, s, uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
	}
}
