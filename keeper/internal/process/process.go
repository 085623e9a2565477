package process

import (
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/journal"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/pool"
	"skerry/keeper/internal/spawn"
	"skerry/keeper/internal/wire"
)

// settleTime is how long a killed tree may take to vanish before the exit is reported all the same.
const settleTime = time.Second

// Process is one command.
type Process struct {
	Request *Request
	User    *accounts.User
	Argv    []string // shortened, as is Shell: for lists
	Shell   *string
	PID     int
	Pty     bool
	Channel bool
	Began   time.Time

	table    *Table
	turn     int64
	job      *pool.Job // nil: it could not be executed
	failure  syscall.Errno
	stdin    *os.File // nil: none
	feed     *feed
	out, err *os.File      // of a terminal, stdin and out are one, and there is no err
	channel  *os.File      // nil: none
	shut     chan struct{} // closed once the program has closed its channel
	pumps    []*pump
	turns    turns
	journal  *journal.Journal
	own      *journal.Reader // of a run: it waits for this one
	timer    *time.Timer
	timedOut atomic.Bool
	killed   atomic.Bool
	late     atomic.Bool // the pumps take what there is, and no more
	ended    chan struct{}
	endedAt  time.Time // valid, as is status, once ended is closed
	status   Status
	listed   atomic.Bool

	noted, saved, forgotten bool // the register's
}

// Status is the exit frame.
type Status struct {
	ExitCode *int    `json:"exit_code"`
	Signal   *string `json:"signal"`
	TimedOut bool    `json:"timed_out"`
	Duration float64 `json:"duration_s"`
	CPU      float64 `json:"cpu_s"`
	MaxRSS   uint64  `json:"max_rss"`
	Left     []int   `json:"left"`
}

// Start runs a command. A Refusal is the caller's error; a program that can't be executed is a Process that has failed.
func (t *Table) Start(q *Request, d Defaults) (*Process, error) {
	request, user, err := q.resolve(d)
	if err != nil {
		return nil, err
	}
	p := &Process{table: t, Request: q, User: user, Pty: q.Pty != nil, Channel: q.Channel, Began: time.Now(), ended: make(chan struct{})}
	if err := t.add(p); err != nil {
		return nil, err
	}
	if err := t.launch(p, request); err != nil {
		t.remove(p)
		return nil, err
	}
	p.journal = t.Journals.New(q.ID, q.Journal)
	if !q.Detach {
		p.own = p.journal.Pace()
	}
	if p.job != nil {
		p.prepare()
	}
	p.shorten()
	p.listed.Store(true)
	t.Events.add(p, false)
	t.register.note(p)
	if p.job == nil {
		p.fail()
		return p, nil
	}
	if p.stdin != nil {
		p.feed = newFeed(p.stdin, p.Pty)
	}
	if q.Timeout != nil {
		p.timer = time.AfterFunc(time.Duration(*q.Timeout*float64(time.Second)), p.expire)
	}
	go p.attend()
	return p, nil
}

// fail reports a program that could not be executed, as a shell would.
func (p *Process) fail() {
	code := exitCode(p.failure)
	message := p.Name() + ": " + p.failure.Error() + "\n"
	if *code == 127 {
		message = p.Name() + ": command not found\n"
	}
	p.journal.Append(wire.Stderr, append(make([]byte, wire.FrameHead), message...))
	p.finish(Status{ExitCode: code, Duration: time.Since(p.Began).Seconds(), Left: []int{}})
}

// exitCode is what a shell says of a program that it can't execute.
func exitCode(errno syscall.Errno) *int {
	code := 126
	if errno == syscall.ENOENT {
		code = 127
	}
	return &code
}

func (t *Table) launch(p *Process, request *spawn.Request) error {
	err := pool.ErrUnsent
	for tries := 0; tries < 3 && err == pool.ErrUnsent; tries++ {
		err = t.try(p, request)
	}
	if err == nil {
		p.PID = p.job.PID
		return nil
	}
	if !errors.As(err, &p.failure) {
		return err
	}
	switch p.failure { // not the program's fault, or not certainly
	case syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE:
		return p.failure
	}
	return checkDir(request.Dir, p.User)
}

func (p *Process) expire() {
	if p.Running() {
		p.timedOut.Store(true)
		p.Kill()
	}
}

// Running says whether the command itself has not been reported as ended.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Kill ends the command and everything it started, also what it left behind.
func (p *Process) Kill() {
	if p.job != nil {
		p.killed.Store(true)
		p.job.Kill()
	}
}

// Signal reaches the command's process group; KILL takes the whole tree.
func (p *Process) Signal(s syscall.Signal) error {
	if p.job == nil {
		return syscall.ESRCH
	}
	if s == syscall.SIGKILL && (p.Running() || len(p.Children()) > 0) {
		p.Kill()
		return nil
	}
	return p.job.Signal(s)
}

// Children lists what a finished command left behind and still lives; of one with a channel also what it started, while it runs.
func (p *Process) Children() []int {
	switch {
	case p.job == nil:
		return nil
	case !p.Running():
		return p.job.Left()
	case p.Channel:
		return slices.DeleteFunc(p.job.Left(), func(pid int) bool { return pid == p.PID })
	}
	return nil
}

// Cgroup is the number by which the host knows whose a socket is; 0: it can't.
func (p *Process) Cgroup() uint64 {
	if p.job == nil {
		return 0
	}
	return p.job.Cgroup()
}

// Status is nil while the command runs.
func (p *Process) Status() *Status {
	if p.Running() {
		return nil
	}
	return &p.status
}

// Ended is closed once the command has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// EndedAt is nil while the command runs.
func (p *Process) EndedAt() *time.Time {
	if p.Running() {
		return nil
	}
	return &p.endedAt
}

// Kept says which bytes of the output there are.
func (p *Process) Kept() (from, end int64) { return p.journal.Kept() }

func (p *Process) finish(s Status) {
	p.status, p.endedAt = s, time.Now()
	close(p.ended)
	if p.feed != nil {
		p.feed.close()
	}
	p.journal.Close()
	p.table.Events.add(p, true)
	p.table.register.note(p)
	p.table.settle(p)
}

// conclude makes the status of a command that has exited.
func (p *Process) conclude(ended time.Time) Status {
	exit := p.job.Exit()
	if p.killed.Load() {
		p.job.Settled(settleTime)
	}
	s := Status{
		TimedOut: p.timedOut.Load(), Duration: ended.Sub(p.Began).Seconds(), CPU: exit.CPU.Seconds(), MaxRSS: exit.MaxRSS,
		Left: p.job.Left(),
	}
	if s.Left == nil {
		s.Left = []int{}
	}
	if exit.Status.Signaled() {
		name := linux.SignalName(exit.Status.Signal())
		s.Signal = &name
	} else {
		code := exit.Status.ExitStatus()
		s.ExitCode = &code
	}
	return s
}
