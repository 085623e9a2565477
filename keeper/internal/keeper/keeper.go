// Package keeper is PID 1 of a sandbox. It reaps processes, serves the host on an inherited socket, and ends the
// sandbox when its lifetime is over. docs/design/keeper-protocol.md describes the protocol; routes.go is its table.
//
// PID 1 has unusual duties. It makes itself non-dumpable first, so that /proc/1/mem, fd and environ are closed even to
// root inside. It marks every fd close-on-exec and puts its stdio on /dev/null. It catches every signal that can be
// caught and ignores the three that Go leaves alone, because the kernel does not protect PID 1 from a signal with the
// default action while its main thread blocks it.
//
// The keeper must survive a sandbox that has used up its processes. A Go program dies when it cannot create a thread,
// so the keeper creates its threads at the start, bounds the goroutines that block one (iolimit, asuser), and keeps the
// process limit of users below that of the sandbox.
//
// The host raises the priority of the keeper's threads (nice -10) as soon as it runs. Weights count within a cgroup, so
// other sandboxes are not affected. Without it, several hundred busy programs would delay answers so long that the host
// would take the keeper for dead.
package keeper

import (
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/files"
	"skerry/keeper/internal/guestfiles"
	"skerry/keeper/internal/httpwire"
	"skerry/keeper/internal/journal"
	"skerry/keeper/internal/launchers"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/process"
	"skerry/keeper/internal/sudo"
	"skerry/keeper/internal/watch"
)

// The fds that the server passes to the keeper.
const (
	listenFD  = 3
	cgroupFD  = 4
	cgroupEnv = "SKERRY_CGROUP_FD"
)

const (
	idleDelay  = 10 * time.Second       // longer than a host with many new sandboxes is busy with them
	settleTime = 300 * time.Millisecond // for the last output of ended commands
	saveTime   = time.Second
)

type keeper struct {
	began      time.Time
	processes  *process.Table
	pool       *launchers.Pool
	sudo       *sudo.Server
	quit       chan time.Duration // receives the grace period
	idle       *time.Timer
	restore    sync.Once
	portWaits  chan struct{}
	watches    watch.Set
	guestFiles guestfiles.Writer
	tracked    tracked

	mu     sync.Mutex
	config *config // nil: not configured yet
	life   *time.Timer
}

// Init runs `skerry-keeper init` and returns the exit code.
func Init() int {
	// This must come first: afterwards /proc/1/mem, fd and environ are closed, even to root inside.
	if err := linux.SetNonDumpable(); err != nil {
		return fatal("prctl", err)
	}
	if os.Getpid() != 1 {
		return fatal("init", syscall.EPERM) // as another process, it would signal and reap everything that it can see
	}
	linux.CloseOnExecFrom(listenFD)
	runtime.GOMAXPROCS(2)
	debug.SetGCPercent(50) // the first collection is due at 2 MB, which a start and a command do not reach
	null, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return fatal("/dev/null", err)
	}
	if err := files.Prepare(); err != nil {
		return fatal("/proc", err)
	}
	asuser.Prepare()
	syscall.Umask(0o022)
	for fd := range 3 {
		_ = syscall.Dup3(null, fd, 0)
	}
	group := -1
	if os.Getenv(cgroupEnv) == "4" {
		group = cgroupFD
	}
	pool, err := launchers.New(group, null)
	if err != nil {
		return fatal("seccomp", err)
	}
	k := &keeper{
		began: time.Now(), pool: pool, quit: make(chan time.Duration, 4),
		portWaits: make(chan struct{}, maxPortWaits),
	}
	k.idle = time.AfterFunc(idleDelay, freeMemory)
	k.sudo = sudo.NewServer(k.pool)
	k.processes = process.NewTable(k.pool, journal.NewStore(journal.Dir), null)
	return k.run()
}

func fatal(operation string, err error) int {
	os.Stderr.WriteString("skerry-keeper: " + operation + ": " + err.Error() + "\n")
	return 1
}

// run serves until a shutdown request, the end of the lifetime, or SIGTERM or SIGINT, which root inside may send too.
func (k *keeper) run() int {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, linux.Catchable()...)
	linux.Ignore()
	if err := syscall.SetNonblock(listenFD, true); err != nil {
		return 1
	}
	go k.pool.Warm()
	makeThreads()
	go k.accept()
	for {
		select {
		case s := <-signals:
			k.pool.Reap()
			if s == syscall.SIGTERM || s == syscall.SIGINT {
				return k.end(2*time.Second, signals)
			}
		case grace := <-k.quit:
			return k.end(grace, signals)
		}
	}
}

// end asks every process to end and returns after the grace period. The remaining processes die with PID 1.
func (k *keeper) end(grace time.Duration, signals <-chan os.Signal) int {
	k.pool.Terminate()
	over := time.After(grace)
	for k.pool.Busy() {
		select {
		case <-signals:
			k.pool.Reap()
		case <-time.After(10 * time.Millisecond):
		case <-over:
			k.save(0)
			return 0
		}
	}
	k.save(settleTime)
	k.processes.WaitStreamed(settleTime) // the last output of an ended command may still be on its way to the host
	return 0
}

// save records the processes for the next start of the sandbox, if the disk is fast enough.
func (k *keeper) save(settle time.Duration) {
	saved := make(chan struct{})
	go func() {
		k.processes.Save(settle)
		close(saved)
	}()
	select {
	case <-saved:
	case <-time.After(saveTime):
	}
}

// accept serves connections, each in a goroutine. It waits in the poller and not in accept4, which would hold a thread.
func (k *keeper) accept() {
	listener := os.NewFile(listenFD, "listener")
	raw, err := listener.SyscallConn()
	if err != nil {
		k.quit <- 0
		return
	}
	for {
		var fd int
		var acceptErr error
		err := raw.Read(func(l uintptr) bool {
			fd, _, acceptErr = syscall.Accept4(int(l), syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
			return acceptErr != syscall.EAGAIN
		})
		switch {
		case err != nil:
			k.quit <- 0
			return
		case acceptErr != nil:
			time.Sleep(10 * time.Millisecond) // out of fds: the host tries again
		default:
			go httpwire.NewConn(fd).Serve(k.handle)
		}
	}
}

// freeMemory returns memory to the kernel. It runs once after a quiet period, and not again before the next request: an
// idle sandbox causes no wake-ups.
func freeMemory() {
	runtime.GC() // pooled buffers outlive one collection
	debug.FreeOSMemory()
}

// makeThreads makes the Go runtime create its threads now, while the sandbox still has free processes. The runtime
// keeps them.
func makeThreads() {
	const threads = 8
	for range threads {
		go func() {
			moment := syscall.Timespec{Nsec: 20e6}
			_ = syscall.Nanosleep(&moment, nil) // blocks the thread, not only the goroutine
		}()
	}
}
