package pool

import (
	"bufio"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"skerry/keeper/internal/launcher"
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
	grouped bool // it really sits in group
	ready   chan struct{}
	gone    chan struct{}

	mu    sync.Mutex
	jobs  map[uint32]*Job
	last  uint32 // the last job sent
	empty bool   // nothing of any job is left
	turn  int    // how often it has become empty: a job of an earlier turn has nothing left

	since time.Time // idle since then; pool.mu guards it
}

func (p *Pool) launch() (*Launcher, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = syscall.Close(pair[1]) }()
	l := &Launcher{
		pool: p, ready: make(chan struct{}), gone: make(chan struct{}), jobs: map[uint32]*Job{}, empty: true,
	}
	null := uintptr(p.null)
	attr := &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{null, null, null, uintptr(pair[1])}, Env: []string{"GOMAXPROCS=2"},
		Sys: &syscall.SysProcAttr{Setsid: true},
	}
	if procs := l.makeGroup(); procs != nil {
		defer procs.Close()
		attr.Files = append(attr.Files, procs.Fd()) // a cgroup file is never in the poller: Fd changes nothing
		attr.Env = append(attr.Env, launcher.GroupEnv+"=1")
	}
	if err = p.fork(l, attr); err != nil {
		_ = syscall.Close(pair[0])
		l.discardGroup()
		return nil, err
	}
	_ = syscall.SetNonblock(pair[0], true)
	l.conn = os.NewFile(uintptr(pair[0]), "launcher")
	go l.listen()
	return l, nil
}

// fork starts the process. The pool knows it before anybody can see it: to killStrays it is never a stray.
func (p *Pool) fork(l *Launcher, attr *syscall.ProcAttr) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.pid, err = syscall.ForkExec("/proc/self/exe", []string{"skerry-keeper", "launcher"}, attr); err == nil {
		p.all[l] = true
	}
	return err
}

func (l *Launcher) makeGroup() *os.File {
	if l.pool.cgroup < 0 {
		return nil
	}
	group, err := newGroup(l.pool.cgroup, l.pool.nextNumber())
	if err != nil {
		return nil
	}
	procs, err := group.open("cgroup.procs", syscall.O_WRONLY)
	if err != nil {
		group.remove()
		return nil
	}
	l.group = group
	return procs
}

func (l *Launcher) discardGroup() {
	if l.group != nil {
		l.group.remove()
	}
}

// listen turns the launcher's events into what the jobs wait for, until the launcher is gone.
func (l *Launcher) listen() {
	events := bufio.NewReaderSize(l.conn, 4*spawn.EventSize)
	for {
		e, err := spawn.ReadEvent(events)
		if err != nil {
			break
		}
		l.handle(e)
	}
	l.pool.drop(l)
	l.mu.Lock()
	jobs := l.jobs
	l.jobs = nil
	l.mu.Unlock()
	close(l.gone)
	_ = l.conn.Close()
	for _, job := range jobs {
		job.orphaned()
	}
	if l.grouped {
		l.group.remove() // whatever ended the launcher, its tree goes with it
	} else {
		l.discardGroup()
		l.pool.killStrays()
	}
}

func (l *Launcher) handle(e spawn.Event) {
	l.mu.Lock()
	job := l.jobs[e.Job]
	l.mu.Unlock()
	switch e.Kind {
	case spawn.Ready:
		l.grouped = e.Value == 1
		close(l.ready)
	case spawn.Started:
		if job != nil {
			job.PID = int(e.Value)
			l.pool.register(job)
			job.started <- 0
		}
	case spawn.Failed:
		if job != nil {
			job.started <- syscall.Errno(e.Value)
			l.forget(e.Job)
		}
	case spawn.Exited:
		if job != nil {
			job.finish(Exit{Status: syscall.WaitStatus(e.Value), CPU: time.Duration(e.CPU) * time.Microsecond, MaxRSS: e.MaxRSS})
			l.forget(e.Job)
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
func (l *Launcher) Start(r *spawn.Request, stdio [3]int) (*Job, error) {
	return l.start(r, stdio, false)
}

// Join forks a further command into the tree of one that still has processes: they share its fate.
func (l *Launcher) Join(r *spawn.Request, stdio [3]int) (*Job, error) { return l.start(r, stdio, true) }

func (l *Launcher) start(r *spawn.Request, stdio [3]int, join bool) (*Job, error) {
	job := &Job{launcher: l, started: make(chan syscall.Errno, 1), exited: make(chan struct{})}
	r.Kind, r.Job = spawn.Start, l.pool.nextJob()
	job.id = r.Job
	l.mu.Lock()
	if l.jobs == nil || join && l.empty {
		l.mu.Unlock()
		return nil, ErrUnsent
	}
	l.jobs[job.id] = job
	l.last, l.empty, job.turn = job.id, false, l.turn
	err := l.send(r.Encode(), syscall.UnixRights(stdio[:]...))
	l.mu.Unlock()
	if err != nil {
		_ = syscall.Kill(l.pid, syscall.SIGKILL)
		return nil, ErrUnsent
	}
	select {
	case errno := <-job.started:
		if errno != 0 {
			return nil, errno
		}
		return job, nil
	case <-l.gone:
		return nil, ErrGone
	}
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
