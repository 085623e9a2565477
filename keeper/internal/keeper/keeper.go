// Package keeper is PID 1 of a sandbox: it reaps, serves the host on the socket it was handed, and ends the sandbox when
// its time has come.
package keeper

import (
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"skerry/keeper/internal/files"
	"skerry/keeper/internal/journal"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/own"
	"skerry/keeper/internal/pool"
	"skerry/keeper/internal/process"
	"skerry/keeper/internal/rights"
	"skerry/keeper/internal/sudo"
	"skerry/keeper/internal/watch"
	"skerry/keeper/internal/wire"
)

// The fds that the server hands over.
const (
	listenFD  = 3
	cgroupFD  = 4
	cgroupEnv = "SKERRY_CGROUP_FD"
)

const (
	quietTime  = 2 * time.Second
	settleTime = 300 * time.Millisecond // for the last words of what has ended
	saveTime   = time.Second
)

type keeper struct {
	began     time.Time
	processes *process.Table
	pool      *pool.Pool
	door      *sudo.Door
	quit      chan time.Duration // the grace
	quiet     *time.Timer
	restore   sync.Once
	portWaits chan struct{}
	watches   watch.Set
	own       own.Place
	tracked   tracked

	mu     sync.Mutex
	config *config // nil: not configured yet
	life   *time.Timer
}

// Init is `skerry-keeper init`. It returns the exit code.
func Init() int {
	// Before anything else can run: afterwards /proc/1/mem, fd and environ are closed, to root inside too.
	if err := linux.SetNonDumpable(); err != nil {
		return complain("prctl", err)
	}
	if os.Getpid() != 1 {
		return complain("init", syscall.EPERM) // it signals and reaps everything it can see
	}
	linux.CloseOnExecFrom(listenFD)
	runtime.GOMAXPROCS(2)
	debug.SetGCPercent(25)
	null, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return complain("/dev/null", err)
	}
	if err := files.Prepare(); err != nil {
		return complain("/proc", err)
	}
	rights.Prepare()
	syscall.Umask(0o022)
	for fd := range 3 {
		_ = syscall.Dup3(null, fd, 0)
	}
	group := -1
	if os.Getenv(cgroupEnv) == "4" {
		group = cgroupFD
	}
	k := &keeper{
		began: time.Now(), pool: pool.New(group, null), quit: make(chan time.Duration, 4),
		portWaits: make(chan struct{}, maxPortWaits),
	}
	k.quiet = time.AfterFunc(quietTime, tidy)
	k.door = sudo.NewDoor(k.pool)
	k.processes = process.NewTable(k.pool, journal.NewStore(journal.Dir), null)
	return k.run()
}

func complain(what string, err error) int {
	os.Stderr.WriteString("skerry-keeper: " + what + ": " + err.Error() + "\n")
	return 1
}

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

// end asks every process to end, and leaves after the grace; what is left then dies with PID 1.
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
	k.processes.Shown(settleTime) // what a command said last is on its way to the host when the command has ended
	return 0
}

// save writes down what a next life of the sandbox is to know, if the disk takes it in time.
func (k *keeper) save(moment time.Duration) {
	saved := make(chan struct{})
	go func() {
		k.processes.Save(moment)
		close(saved)
	}()
	select {
	case <-saved:
	case <-time.After(saveTime):
	}
}

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
			time.Sleep(10 * time.Millisecond) // out of fds: the host will come again
		default:
			go wire.NewConn(fd).Serve(k.handle)
		}
	}
}

// tidy gives memory back. It runs once it has been quiet for a while, and not again before something happened: an idle
// sandbox costs no wake-ups.
func tidy() {
	runtime.GC() // pooled buffers outlive one collection
	debug.FreeOSMemory()
}

// makeThreads has the Go runtime make its threads now, while there is room. It keeps them.
func makeThreads() {
	const threads = 8
	for range threads {
		go func() {
			moment := syscall.Timespec{Nsec: 20e6}
			_ = syscall.Nanosleep(&moment, nil) // blocks the thread, not only the goroutine
		}()
	}
}
