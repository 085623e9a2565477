package launchers

import (
	"bufio"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"skerry/keeper/internal/launchproto"
)

// ErrUnsent means that a launcher was gone before it received the request: nothing has run, and another launcher may be
// tried.
var ErrUnsent = errors.New("the launcher did not receive the request")

// ErrGone means that a launcher died before it confirmed the start.
var ErrGone = errors.New("the launcher has died")

// Launcher is the keeper's handle of one launcher process.
type Launcher struct {
	pool    *Pool
	pid     int
	conn    *os.File
	group   *Group
	grouped bool // the launcher is in a group; valid once ready is closed
	helper  bool // started for one command of sudo; dismissed at once
	ready   chan struct{}
	moved   chan bool
	gone    chan struct{}

	mu      sync.Mutex
	jobs    map[uint32]*Job // unfinished commands of its group; nil: gone
	last    uint32          // the last job sent
	empty   bool            // no process of any job is left in its group
	round   int             // how often it has become empty: jobs of earlier rounds have no processes left
	target  *Group          // where it was asked to move: its next command starts there; nil: nowhere
	pending int             // unanswered starts

	slot      bool      // counts as one of maxLaunchers; this and the rest are guarded by pool.mu
	leaving   bool      // about to be asked to move
	dismissed bool      // asked to end; its commands stay
	stale     bool      // a limit that it has lowered for itself was raised since: it serves no further command
	began     time.Time // start of its current command; zero: none
	since     time.Time // start of its idle time
}

// listen passes the launcher's events to its jobs until the launcher is gone.
func (l *Launcher) listen() {
	events := bufio.NewReaderSize(l.conn, 4*launchproto.EventSize)
	for {
		e, err := launchproto.ReadEvent(events)
		if err != nil {
			break
		}
		l.handle(e)
	}
	l.leave()
	dismissed := l.pool.drop(l)
	l.mu.Lock()
	jobs, pending := l.jobs, l.pending
	l.jobs, l.pending = nil, 0
	l.mu.Unlock()
	l.pool.answered(pending)
	close(l.gone)
	_ = l.conn.Close()
	switch {
	case dismissed:
	case !l.grouped: // however the launcher died, its tree dies too
		for _, job := range jobs {
			job.launcherLost()
		}
		l.pool.killStrays()
	case pending > 0: // the group may have a command with an unknown pid
		_ = l.group.kill()
	}
}

// handle passes one event to its job.
func (l *Launcher) handle(e launchproto.Event) {
	l.mu.Lock()
	job := l.jobs[e.Job]
	l.mu.Unlock()
	switch e.Kind {
	case launchproto.Ready:
		l.pool.setGrouped(l, e.Value == 1)
		if l.group != nil {
			l.group.bill() // the launcher's start is no part of a command
		}
		close(l.ready)
	case launchproto.Started:
		if job != nil {
			job.begin(int(e.Value))
			job.started <- 0
			l.startAnswered()
		}
	case launchproto.Failed:
		if job != nil {
			job.started <- syscall.Errno(e.Value)
			l.forget(e.Job)
			l.startAnswered()
			l.pool.commandStarted(l) // it can move if the kernel still counts the child that failed
			if job.group != nil {
				l.settleGroup()
			}
		}
	case launchproto.Exited:
		if job != nil {
			job.finish(Exit{Status: syscall.WaitStatus(e.Value), CPU: time.Duration(e.CPU) * time.Microsecond, MaxRSS: e.MaxRSS})
		}
	case launchproto.Empty:
		l.settle(e.Job)
	case launchproto.Moved:
		l.handleMoved(e.Value == 1)
	}
}

func (l *Launcher) forget(job uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.jobs, job)
}

// settle is called when a launcher without a group has no child left.
func (l *Launcher) settle(job uint32) {
	l.mu.Lock()
	idle := job == l.last && !l.empty
	if idle {
		l.empty = true
		l.round++
	}
	l.mu.Unlock()
	if idle {
		l.pool.giveBack(l)
	}
}

// settleGroup offers the launcher for the next command if no process of the last one is left in its group.
func (l *Launcher) settleGroup() {
	l.mu.Lock() // until it is given back: it cannot be asked to move meanwhile
	defer l.mu.Unlock()
	if l.jobs == nil || len(l.jobs) > 0 || l.empty || l.target != nil || l.group.killed.Load() {
		return
	}
	if pids := l.group.pids(2); len(pids) == 1 && pids[0] == l.pid {
		l.empty = true
		l.round++
		l.pool.giveBack(l)
	}
}

// startAnswered is called when a start has succeeded or failed.
func (l *Launcher) startAnswered() {
	l.mu.Lock()
	l.pending--
	l.mu.Unlock()
	l.pool.answered(1)
}

// Start forks a command from a taken launcher and waits until it runs or fails.
func (l *Launcher) Start(r *launchproto.Request, fds []int) (*Job, error) {
	return l.start(r, fds, false, nil)
}

// start sends a request and waits for its answer. With join, the command is added to a tree that must still have
// processes: the launcher's, which must still be in the given group, if any.
func (l *Launcher) start(r *launchproto.Request, fds []int, join bool, in *Group) (*Job, error) {
	job := &Job{launcher: l, joined: join, sent: time.Now(), started: make(chan syscall.Errno, 1), exited: make(chan struct{})}
	r.Kind, r.Job = launchproto.Start, l.pool.nextJob()
	job.id = r.Job
	l.mu.Lock()
	if l.jobs == nil || l.target != nil || join && (l.empty || in != nil && in != l.group) {
		l.mu.Unlock()
		return nil, ErrUnsent
	}
	if l.grouped {
		job.group = l.group
	}
	l.jobs[job.id] = job
	l.last, l.empty, job.round = job.id, false, l.round
	l.pending++
	l.pool.starting()
	err := l.send(r.Encode(), syscall.UnixRights(fds...))
	l.mu.Unlock()
	if err != nil {
		l.kill()
		return nil, ErrUnsent
	}
	late := time.NewTimer(startWait)
	defer late.Stop()
	select {
	case errno := <-job.started:
		if errno != 0 {
			return nil, errno
		}
		return job, nil
	case <-l.gone:
	case <-late.C: // root inside may have stopped the launcher; without an answer, the host would take the keeper for dead
		if !join { // otherwise it has a running command
			l.kill()
		}
	}
	return nil, ErrGone
}

// send writes a whole message; the fds travel with its first byte. l.mu is held, so messages do not mix.
func (l *Launcher) send(message, rights []byte) error {
	raw, err := l.conn.SyscallConn()
	if err != nil {
		return err
	}
	_ = l.conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
	sent := 0
	var sendErr error
	err = raw.Write(func(fd uintptr) bool {
		sent, sendErr = syscall.SendmsgN(int(fd), message, rights, nil, syscall.MSG_NOSIGNAL)
		return sendErr != syscall.EAGAIN
	})
	if err = errors.Join(err, sendErr); err != nil {
		return err
	}
	if sent < len(message) {
		_, err = l.conn.Write(message[sent:])
	}
	return err
}

func (l *Launcher) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.empty && l.jobs != nil
}

// Release returns an unused launcher.
func (l *Launcher) Release() { l.pool.giveBack(l) }
