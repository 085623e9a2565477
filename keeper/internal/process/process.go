package process

import (
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/httpwire"
	"skerry/keeper/internal/journal"
	"skerry/keeper/internal/launchers"
	"skerry/keeper/internal/launchproto"
	"skerry/keeper/internal/linux"
)

// settleTime bounds the wait for a killed tree to vanish before the exit is reported.
const settleTime = time.Second

// Process is one command.
type Process struct {
	Request *Request
	User    *accounts.User
	Argv    []string // truncated, like Shell, for lists
	Shell   *string
	PID     int
	Pty     bool
	Channel bool
	Began   time.Time

	table         *Table
	seq           int64
	job           *launchers.Job // nil: the program could not be executed
	failure       syscall.Errno
	stdin         *os.File // nil: none
	stdinWriter   *stdinWriter
	out, err      *os.File      // for a terminal, stdin and out are the same file and err is nil
	channel       *os.File      // nil: none
	channelClosed chan struct{} // closed once the program has closed its channel
	outputs       []*outputPump
	exchanges     exchanges
	journal       *journal.Journal
	pacedReader   *journal.Reader // of a run: the program waits for this reader
	timer         *time.Timer
	timedOut      atomic.Bool
	killed        atomic.Bool
	late          atomic.Bool // the pumps take only the bytes that are there
	ended         chan struct{}
	endedAt       time.Time // valid, like status, once ended is closed
	status        Status
	listed        atomic.Bool

	queued, saved, forgotten bool // guarded by the persister
}

// Status is the payload of the exit frame.
type Status struct {
	ExitCode *int    `json:"exit_code"`
	Signal   *string `json:"signal"`
	TimedOut bool    `json:"timed_out"`
	Duration float64 `json:"duration_s"`
	CPU      float64 `json:"cpu_s"`
	MaxRSS   uint64  `json:"max_rss"`
	Left     []int   `json:"left"`
}

// Start runs a command. A RequestError is the caller's fault; a program that cannot be executed becomes a Process that
// has failed.
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
		p.pacedReader = p.journal.Pace()
	}
	if p.job != nil {
		p.makePumps()
	}
	p.truncateCommand()
	p.listed.Store(true)
	t.Events.add(p, false)
	t.persister.note(p)
	if p.job == nil {
		p.fail()
		return p, nil
	}
	if p.stdin != nil {
		p.stdinWriter = newStdinWriter(p.stdin, p.Pty)
	}
	if q.Timeout != nil {
		p.timer = time.AfterFunc(time.Duration(*q.Timeout*float64(time.Second)), p.expire)
	}
	go p.supervise()
	return p, nil
}

// fail reports a program that could not be executed, as a shell does.
func (p *Process) fail() {
	code := exitCode(p.failure)
	message := p.Name() + ": " + p.failure.Error() + "\n"
	if *code == 127 {
		message = p.Name() + ": command not found\n"
	}
	p.journal.Append(httpwire.Stderr, append(make([]byte, httpwire.FrameHeader), message...))
	p.finish(Status{ExitCode: code, Duration: time.Since(p.Began).Seconds(), Left: []int{}})
}

// exitCode returns the exit code of a shell for a program that it cannot execute.
func exitCode(errno syscall.Errno) *int {
	code := 126
	if errno == syscall.ENOENT {
		code = 127
	}
	return &code
}

// launch starts the command and tries again if a launcher was gone before it received the request. Errors that may have
// passing causes are returned; the others make the process a failed one, unless the directory is the cause.
func (t *Table) launch(p *Process, request *launchproto.Request) error {
	err := launchers.ErrUnsent
	for tries := 0; tries < 3 && err == launchers.ErrUnsent; tries++ {
		err = t.try(p, request)
	}
	if err == nil {
		p.PID = p.job.PID
		return nil
	}
	if !errors.As(err, &p.failure) {
		return err
	}
	switch p.failure { // certainly or possibly not the program's fault
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

// Running reports whether the command has not been reported as ended.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Kill ends the command and everything that it started, including leftover processes.
func (p *Process) Kill() {
	if p.job != nil {
		p.killed.Store(true)
		p.job.Kill()
	}
}

// Signal signals the command's process group; KILL ends the whole tree.
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

// Children lists the living processes that a finished command left behind or that a running command with a channel has
// started.
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

// Cgroup returns the ID by which the host attributes sockets to this command; 0: unknown.
func (p *Process) Cgroup() uint64 {
	if p.job == nil {
		return 0
	}
	return p.job.Cgroup()
}

// Status returns nil while the command runs.
func (p *Process) Status() *Status {
	if p.Running() {
		return nil
	}
	return &p.status
}

// Ended returns a channel that is closed once the command has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// EndedAt returns nil while the command runs.
func (p *Process) EndedAt() *time.Time {
	if p.Running() {
		return nil
	}
	return &p.endedAt
}

// Kept returns the range of recorded output.
func (p *Process) Kept() (from, end int64) { return p.journal.Kept() }

func (p *Process) finish(s Status) {
	p.status, p.endedAt = s, time.Now()
	close(p.ended)
	if p.stdinWriter != nil {
		p.stdinWriter.close()
	}
	p.journal.Close()
	p.table.Events.add(p, true)
	p.table.persister.note(p)
	p.table.settle(p)
}

// exitStatus describes the end of a command that has exited.
func (p *Process) exitStatus(ended time.Time) Status {
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
