// Package launcher is the process that commands are forked from. In a cgroup, which commands inherit, their parent is
// the keeper, so that the launcher can move to another cgroup. Without one, the launcher is their parent, and the
// subreaper of everything that they leave behind. Commands get the user's uid, gid and groups, no capabilities unless
// they run as root, a new session, default signals, and only fds 0 to 2 (and 3, a channel).
package launcher

import (
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"skerry/keeper/internal/launchproto"
	"skerry/keeper/internal/linux"
)

// The fds that the keeper passes to a launcher.
const (
	SocketFD = 3
	ProcsFD  = 4 // cgroup.procs of the launcher's cgroup, open for writing; only with GroupEnv
	GroupEnv = "SKERRY_LAUNCHER_GROUP"
)

const (
	oomScore   = 500
	quietTime  = 10 * time.Second
	timerSlack = 50 * time.Microsecond // the kernel's default
)

type launcher struct {
	grouped bool // in a cgroup; then the rest is unused

	mu       sync.Mutex // held from fork to the entry in jobs, and from reaping to its removal
	jobs     map[int]uint32
	last     uint32 // the last requested job
	reported uint32 // the last job after which Empty was sent

	freed   uint32 // the last job after which memory was freed; used by reap only
	started chan struct{}
}

// Run serves until the keeper closes the socket and returns the exit code.
func Run() int {
	// No command may reach this process: it can fork with the rights of root inside.
	if linux.SetNonDumpable() != nil || linux.SetChildSubreaper() != nil {
		return 1
	}
	syscall.CloseOnExec(SocketFD)
	// The host gives PID 1 a higher priority and late timers. Commands are forked from this thread and get the ordinary
	// ones; the other threads, which belong to the Go runtime, keep the late timers.
	runtime.LockOSThread()
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, 0)
	_ = linux.SetTimerSlack(timerSlack)
	debug.SetGCPercent(20)
	linux.Default()
	syscall.Umask(0o022)
	linux.RaiseOOMScore(oomScore)
	l := &launcher{jobs: map[int]uint32{}, started: make(chan struct{}, 1)}
	l.grouped = os.Getenv(GroupEnv) != "" && join(ProcsFD) == 1
	if l.grouped {
		l.send(launchproto.Event{Kind: launchproto.Ready, Value: 1})
	} else {
		l.send(launchproto.Event{Kind: launchproto.Ready})
		go l.reap()
	}
	for {
		request, fds, err := launchproto.Receive(SocketFD, launchproto.MaxRequest)
		switch {
		case err == syscall.EAGAIN:
			debug.FreeOSMemory()
			receiveTimeout(0)
		case err != nil:
			return 0
		default:
			l.serve(request, fds)
		}
	}
}

// join enters the cgroup of an open cgroup.procs file, and returns 1 on success.
func join(procs int) uint32 {
	defer syscall.Close(procs)
	if _, err := syscall.Write(procs, []byte("0")); err != nil {
		return 0
	}
	return 1
}

func receiveTimeout(after time.Duration) {
	timeout := syscall.NsecToTimeval(after.Nanoseconds())
	_ = syscall.SetsockoptTimeval(SocketFD, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &timeout)
}

// serve handles one request of the keeper.
func (l *launcher) serve(r *launchproto.Request, fds []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch r.Kind {
	case launchproto.Move:
		moved := uint32(0)
		if len(fds) == 1 && l.grouped {
			moved = join(fds[0])
		}
		l.send(launchproto.Event{Kind: launchproto.Moved, Value: moved})
	case launchproto.Signal:
		for pid, job := range l.jobs {
			if job == r.Job {
				_ = syscall.Kill(-pid, syscall.Signal(r.Signal))
			}
		}
	case launchproto.Start:
		l.start(r, fds)
	}
}

// start forks a command. The lock is held, so that the child cannot be reaped before it is in the table.
func (l *launcher) start(r *launchproto.Request, fds []int) {
	pid, errno := fork(r, fds, l.grouped)
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
	l.last = r.Job
	if errno != 0 {
		l.send(launchproto.Event{Kind: launchproto.Failed, Job: r.Job, Value: uint32(errno)})
	} else {
		l.jobs[pid] = r.Job
		l.send(launchproto.Event{Kind: launchproto.Started, Job: r.Job, Value: uint32(pid)})
	}
	if l.grouped {
		delete(l.jobs, pid) // the keeper's
		receiveTimeout(quietTime)
		return
	}
	select {
	case l.started <- struct{}{}:
	default:
	}
}

// reap collects every child, commands and orphans, and reports when none is left.
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

// collect reaps one child and reports it if it is a command.
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
	events := []launchproto.Event{{
		Kind: launchproto.Exited, Job: job, Value: uint32(status), CPU: uint64(cpu), MaxRSS: uint64(usage.Maxrss) << 10,
	}}
	if _, err := linux.NextExit(false); err != nil { // the usual case: one write wakes the keeper once
		l.reported = l.last
		events = append(events, launchproto.Event{Kind: launchproto.Empty, Job: l.last})
	}
	l.send(events...)
}

// empty is called when no child exists. It reports that once and waits for the next command.
func (l *launcher) empty() {
	l.mu.Lock()
	_, err := linux.NextExit(false)
	if err != nil && l.reported != l.last {
		l.reported = l.last
		l.send(launchproto.Event{Kind: launchproto.Empty, Job: l.last})
	}
	l.mu.Unlock()
	if err != nil {
		l.waitForCommand()
	}
}

// waitForCommand waits for the next command and frees memory after a quiet period.
func (l *launcher) waitForCommand() {
	select {
	case <-l.started:
		return
	case <-time.After(quietTime):
	}
	if l.last > l.freed {
		l.freed = l.last
		debug.FreeOSMemory()
	}
	<-l.started
}

func (l *launcher) send(events ...launchproto.Event) {
	var message []byte
	for _, e := range events {
		message = append(message, e.Encode()...)
	}
	if _, err := syscall.Write(SocketFD, message); err != nil {
		os.Exit(0)
	}
}
