// Package launcher is the process that commands are forked from. It joins a cgroup of its own once, so that a command
// costs no migration, and is the subreaper of all that a command leaves behind.
package launcher

import (
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/spawn"
)

// The fds that the keeper hands over.
const (
	SocketFD = 3
	ProcsFD  = 4 // cgroup.procs of the launcher's cgroup, open for writing; only with GroupEnv
	GroupEnv = "SKERRY_LAUNCHER_GROUP"
)

const (
	oomScore  = 500
	quietTime = time.Second
)

type launcher struct {
	mu   sync.Mutex // held from fork to the entry in jobs, and from reaping to its removal
	jobs map[int]uint32
	last uint32 // the last job asked for
	said uint32 // the last job after which Empty was said

	tidied uint32 // the last job after which memory was given back; of reap alone
	spawn  chan struct{}
}

// Run serves until the keeper closes the socket. It returns the exit code.
func Run() int {
	// Nothing that a command does may reach this process: it can fork with the rights of root inside.
	if linux.SetNonDumpable() != nil || linux.SetChildSubreaper() != nil {
		return 1
	}
	syscall.CloseOnExec(SocketFD)
	// The host has PID 1 go before others; commands, which are forked from this thread, go as everybody does.
	runtime.LockOSThread()
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, 0)
	debug.SetGCPercent(20)
	linux.Default()
	syscall.Umask(0o022)
	linux.RaiseOOMScore(oomScore)
	l := &launcher{jobs: map[int]uint32{}, spawn: make(chan struct{}, 1)}
	l.send(spawn.Event{Kind: spawn.Ready, Value: join()})
	go l.reap()
	for {
		request, fds, err := spawn.Receive(SocketFD, spawn.MaxRequest)
		if err != nil {
			return 0
		}
		l.serve(request, fds)
	}
}

func join() uint32 {
	if os.Getenv(GroupEnv) == "" {
		return 0
	}
	defer syscall.Close(ProcsFD)
	if _, err := syscall.Write(ProcsFD, []byte("0")); err != nil {
		return 0
	}
	return 1
}

func (l *launcher) serve(r *spawn.Request, fds []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch r.Kind {
	case spawn.Signal:
		for pid, job := range l.jobs {
			if job == r.Job {
				_ = syscall.Kill(-pid, syscall.Signal(r.Signal))
			}
		}
	case spawn.Start:
		l.start(r, fds)
	case spawn.Retire: // l.mu is held: whatever was reaped has been reported
		l.send(spawn.Event{Kind: spawn.Retired})
		os.Exit(0)
	}
}

func (l *launcher) start(r *spawn.Request, fds []int) {
	pid, errno := fork(r, fds)
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
	l.last = r.Job
	if errno != 0 {
		l.send(spawn.Event{Kind: spawn.Failed, Job: r.Job, Value: uint32(errno)})
	} else {
		l.jobs[pid] = r.Job
		l.send(spawn.Event{Kind: spawn.Started, Job: r.Job, Value: uint32(pid)})
	}
	select {
	case l.spawn <- struct{}{}:
	default:
	}
}

// reap collects every child, the commands and their orphans, and says when none is left.
func (l *launcher) reap() {
	for {
		pid, err := linux.NextExit(true)
		if err != nil {
			l.empty()
			continue
		}
		l.collect(pid)
	}
}

func (l *launcher) collect(pid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var status syscall.WaitStatus
	var usage syscall.Rusage
	if got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, &usage); got != pid || err != nil {
		return
	}
	job, ok := l.jobs[pid]
	if !ok {
		return
	}
	delete(l.jobs, pid)
	cpu := usage.Utime.Nano()/1000 + usage.Stime.Nano()/1000
	events := []spawn.Event{{
		Kind: spawn.Exited, Job: job, Value: uint32(status), CPU: uint64(cpu), MaxRSS: uint64(usage.Maxrss) << 10,
	}}
	if _, err := linux.NextExit(false); err != nil { // the usual case: one write, one wake-up of the keeper
		l.said = l.last
		events = append(events, spawn.Event{Kind: spawn.Empty, Job: l.last})
	}
	l.send(events...)
}

// empty is called when there was no child: it says so once, and waits for the next.
func (l *launcher) empty() {
	l.mu.Lock()
	_, err := linux.NextExit(false)
	if err != nil && l.said != l.last {
		l.said = l.last
		l.send(spawn.Event{Kind: spawn.Empty, Job: l.last})
	}
	l.mu.Unlock()
	if err != nil {
		l.rest()
	}
}

// rest waits for the next command, and gives memory back once it has been quiet for a while.
func (l *launcher) rest() {
	select {
	case <-l.spawn:
		return
	case <-time.After(quietTime):
	}
	if l.last > l.tidied {
		l.tidied = l.last
		debug.FreeOSMemory()
	}
	<-l.spawn
}

func (l *launcher) send(events ...spawn.Event) {
	var message []byte
	for _, e := range events {
		message = append(message, e.Encode()...)
	}
	if _, err := syscall.Write(SocketFD, message); err != nil {
		os.Exit(0)
	}
}
