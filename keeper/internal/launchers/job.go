package launchers

import (
	"sync"
	"syscall"
	"time"

	"skerry/keeper/internal/launchproto"
)

// Exit describes the end of a command.
type Exit struct {
	Status syscall.WaitStatus
	CPU    time.Duration
	MaxRSS uint64
}

// Job is one command that a launcher forked.
type Job struct {
	PID      int
	id       uint32
	sent     time.Time
	round    int // round of the launcher at the start
	launcher *Launcher
	group    *Group // nil: none, and the launcher is the command's parent; otherwise the keeper is
	counted  bool   // counted in its group's jobs
	joined   bool   // added to the processes of an earlier command
	started  chan syscall.Errno
	exited   chan struct{}
	once     sync.Once
	exit     Exit
}

// killed is the wait status after SIGKILL.
const killed = syscall.WaitStatus(syscall.SIGKILL)

const killAgain = 50 * time.Millisecond

// statusTimeout limits how long the keeper waits for a command's exit status after its launcher died.
const statusTimeout = 2 * time.Second

// Cgroup returns the ID of the group of the command and everything that it starts; 0: none.
func (j *Job) Cgroup() uint64 {
	if j.group == nil {
		return 0
	}
	return j.group.id
}

// CPU returns the processor time of everything in the command's group; false: it has no group.
func (j *Job) CPU() (time.Duration, bool) {
	if j.group == nil {
		return 0, false
	}
	return j.group.cpu()
}

// Exited returns a channel that is closed once the command has ended.
func (j *Job) Exited() <-chan struct{} { return j.exited }

// Exit is valid once Exited is closed.
func (j *Job) Exit() Exit { return j.exit }

// Signal signals the command's process group, as a terminal does. Only the parent may send it, because only the parent
// knows that the pid is still the same process.
func (j *Job) Signal(s syscall.Signal) error {
	l := j.launcher
	if j.group != nil {
		return l.pool.signal(j, s)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, running := l.jobs[j.id]; !running {
		return syscall.ESRCH
	}
	r := launchproto.Request{Kind: launchproto.Signal, Job: j.id, Signal: uint32(s)}
	return l.send(r.Encode(), nil)
}

// Kill ends the command with its whole tree, including processes that called setsid. A launcher that is still in the
// command's group dies too.
func (j *Job) Kill() {
	l := j.launcher
	l.mu.Lock() // so that the launcher cannot start another command meanwhile
	defer l.mu.Unlock()
	switch {
	case !j.has() || j.group != nil && j.group.kill() == nil:
	case j.group == nil:
		killTree(l.pid)
	default: // the keeper is out of fds or memory: nothing else can do it
		time.AfterFunc(killAgain, j.Kill)
	}
}

// has reports whether any process of the command may still live. launcher.mu is held.
func (j *Job) has() bool {
	switch j.group {
	case nil:
		return j.launcher.round == j.round && j.launcher.jobs != nil
	case j.launcher.group:
		return j.launcher.round == j.round
	}
	return !j.group.gone.Load() // the launcher has moved
}

// Left lists the living processes of the command's tree.
func (j *Job) Left() []int {
	l := j.launcher
	l.mu.Lock()
	defer l.mu.Unlock()
	if !j.has() {
		return nil
	}
	if j.group == nil {
		return descendants(l.pid)
	}
	return l.pool.withoutLaunchers(j.group.pids(maxLeft + maxLaunchers))
}

// Settled waits, up to a bound, until a killed tree is gone.
func (j *Job) Settled(atMost time.Duration) {
	for end := time.Now().Add(atMost); len(j.Left()) > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// begin is called when the command runs.
func (j *Job) begin(pid int) {
	j.PID = pid
	if j.group != nil {
		j.group.count(1)
		j.counted = true
	}
	j.launcher.pool.commandStarted(j.launcher)
	if e := j.launcher.pool.register(j); e != nil {
		j.finish(*e)
	}
}

func (j *Job) finish(e Exit) {
	j.once.Do(func() {
		if j.counted { // children that their parent did not wait for are in the group only
			if used := j.group.bill(); !j.joined {
				e.CPU = max(e.CPU, used)
			}
		}
		j.exit = e
		j.launcher.pool.unregister(j)
		j.launcher.forget(j.id)
		if j.counted {
			j.group.count(-1)
			j.launcher.settleGroup()
		}
		close(j.exited)
	})
}

// launcherLost is called when a launcher without a group died before its command, which is now the keeper's child and is
// killed.
func (j *Job) launcherLost() {
	time.AfterFunc(statusTimeout, func() { j.finish(Exit{Status: killed}) })
}
