package launchers

import (
	"runtime"
	"syscall"

	"skerry/keeper/internal/uncharged"
)

// forker is the thread that launchers are forked from. They and all commands inherit its seccomp filter, which the
// keeper's other threads do not have.
type forker struct {
	requests chan *syscall.ProcAttr
	results  chan forked
}

type forked struct {
	pid int
	err error
}

func newForker() (*forker, error) {
	f := &forker{requests: make(chan *syscall.ProcAttr), results: make(chan forked)}
	ready := make(chan error)
	go f.run(ready)
	return f, <-ready
}

func (f *forker) run(ready chan<- error) {
	runtime.LockOSThread() // never unlocked: Go starts no thread from a locked one, so none inherits the filter
	guard, err := uncharged.New()
	ready <- err
	if err != nil {
		return
	}
	go guard.Serve()
	for attr := range f.requests {
		pid, err := syscall.ForkExec("/proc/self/exe", []string{"skerry-keeper", "launcher"}, attr)
		f.results <- forked{pid, err}
	}
}

// fork starts a launcher; one caller at a time.
func (f *forker) fork(attr *syscall.ProcAttr) (int, error) {
	f.requests <- attr
	r := <-f.results
	return r.pid, r.err
}
