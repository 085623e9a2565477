package pool

import (
	"bufio"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"skerry/keeper/internal/spawn"
)

// ErrUnsent means that a launcher was gone before it was asked: nothing has run, another may be tried.
var ErrUnsent = errors.New("the launcher could not be asked")

// ErrGone means that a launcher died before it said that the command runs.
var ErrGone = errors.New("the launcher is gone")

// Launcher is the keeper's hold on one launcher process.
type Launcher struct {
	pool    *Pool
	pid     int
	conn    *os.File
	group   *Group
	grouped bool // it really sits in group; known once ready is closed
	helper  bool // it came for one command of sudo's, and leaves at once
	ready   chan struct{}
	gone    chan struct{}

	mu      sync.Mutex
	jobs    map[uint32]*Job // nil: gone
	last    uint32          // the last job sent
	empty   bool            // nothing of any job is left
	turn    int             // how often it has become empty: a job of an earlier turn has nothing left
	told    bool            // to retire
	pending int             // starts that were not answered yet

	slot    bool      // it counts; pool.mu guards this and the rest
	leaving bool      // it is being told to retire
	stale   bool      // limits that it has lowered for itself have been raised since: it serves no other command
	began   time.Time // its command runs since then; zero: none does
	since   time.Time // idle since then
}

// listen turns the launcher's events into what the jobs wait for, until the launcher is gone.
func (l *Launcher) listen() {
	events := bufio.NewReaderSize(l.conn, 4*spawn.EventSize)
	retired := false
	for {
		e, err := spawn.ReadEvent(events)
		if err != nil {
			break
		}
		retired = e.Kind == spawn.Retired
		l.handle(e)
	}
	l.leave()
	l.pool.drop(l)
	l.mu.Lock()
	jobs := l.jobs
	l.jobs = nil
	l.mu.Unlock()
	close(l.gone)
	_ = l.conn.Close()
	if !retired { // whatever ended the launcher, its tree goes with it
		l.bereave(jobs)
	}
}

func (l *Launcher) bereave(jobs map[uint32]*Job) {
	for _, job := range jobs {
		job.orphaned()
	}
	if l.grouped {
		_ = l.group.kill()
	} else {
		l.pool.killStrays()
	}
}

func (l *Launcher) handle(e spawn.Event) {
	l.mu.Lock()
	job := l.jobs[e.Job]
	l.mu.Unlock()
	switch e.Kind {
	case spawn.Ready:
		l.pool.arrived(l, e.Value == 1)
		close(l.ready)
	case spawn.Started:
		if job != nil {
			job.begin(int(e.Value))
			job.started <- 0
			l.answered()
		}
	case spawn.Failed:
		if job != nil {
			job.started <- syscall.Errno(e.Value)
			l.forget(e.Job)
			l.answered()
		}
	case spawn.Exited:
		if job != nil {
			job.finish(Exit{Status: syscall.WaitStatus(e.Value), CPU: time.Duration(e.CPU) * time.Microsecond, MaxRSS: e.MaxRSS})
		}
	case spawn.Empty:
		l.settle(e.Job)
	}
}

func (l *Launcher) forget(job uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.jobs, job)
}

func (l *Launcher) settle(job uint32) {
	l.mu.Lock()
	idle := job == l.last && !l.empty
	if idle {
		l.empty = true
		l.turn++
	}
	l.mu.Unlock()
	if idle {
		l.pool.giveBack(l)
	}
}

// Start forks a command from a launcher that was taken, and waits until it runs or can't.
func (l *Launcher) Start(r *spawn.Request, fds []int) (*Job, error) {
	return l.start(r, fds, false)
}

func (l *Launcher) start(r *spawn.Request, fds []int, join bool) (*Job, error) {
	job := &Job{launcher: l, started: make(chan syscall.Errno, 1), exited: make(chan struct{})}
	r.Kind, r.Job = spawn.Start, l.pool.nextJob()
	job.id = r.Job
	l.mu.Lock()
	if l.jobs == nil || l.told || join && l.empty {
		l.mu.Unlock()
		return nil, ErrUnsent
	}
	l.jobs[job.id] = job
	l.last, l.empty, job.turn = job.id, false, l.turn
	l.pending++
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
	case <-late.C: // root inside may have stopped it; the host takes a keeper that says nothing for dead
		if !join { // else it has a command that runs
			l.kill()
		}
	}
	return nil, ErrGone
}

// send writes a whole message; the fds travel with its first byte. l.mu is held: messages don't mix.
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

// Release gives an unused launcher back.
func (l *Launcher) Release() { l.pool.giveBack(l) }
