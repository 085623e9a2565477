package pool

import (
	"sync"
	"syscall"
	"time"

	"skerry/keeper/internal/spawn"
)

// Exit is how a command ended.
type Exit struct {
	Status syscall.WaitStatus
	CPU    time.Duration
	MaxRSS uint64
}

// Job is one command that a launcher forked.
type Job struct {
	PID      int
	id       uint32
	turn     int // of the launcher
	launcher *Launcher
	counted  bool // among its group's
	started  chan syscall.Errno
	exited   chan struct{}
	once     sync.Once
	exit     Exit
}

// killed is the wait status of a process that SIGKILL ended.
const killed = syscall.WaitStatus(syscall.SIGKILL)

const killAgain = 50 * time.Millisecond

// orphanWait is how long a command's own status may take to arrive after its launcher died with it.
const orphanWait = 2 * time.Second

// Cgroup is the number of the group in which the command and all that it starts are; 0: none.
func (j *Job) Cgroup() uint64 {
	if j.launcher.group == nil || !j.launcher.grouped {
		return 0
	}
	return j.launcher.group.id
}

// CPU is what everything in the command's group has used of the processors; false: it has none.
func (j *Job) CPU() (time.Duration, bool) {
	if j.launcher.group == nil || !j.launcher.grouped {
		return 0, false
	}
	return j.launcher.group.cpu()
}

// Exited is closed once the command has ended.
func (j *Job) Exited() <-chan struct{} { return j.exited }

// Exit is valid once Exited is closed.
func (j *Job) Exit() Exit { return j.exit }

// Signal reaches the command's process group, as a terminal's signals do. Only the parent can send it, because only the
// parent knows that the pid is still the same process: the launcher, or, once that has retired, the keeper itself.
func (j *Job) Signal(s syscall.Signal) error {
	l := j.launcher
	l.mu.Lock()
	if !l.told {
		defer l.mu.Unlock()
		if _, running := l.jobs[j.id]; !running {
			return syscall.ESRCH
		}
		r := spawn.Request{Kind: spawn.Signal, Job: j.id, Signal: uint32(s)}
		return l.send(r.Encode(), nil)
	}
	l.mu.Unlock()
	if !l.parted() {
		return syscall.EBUSY
	}
	return l.pool.signal(j, s)
}

// Kill ends the command with its whole tree, also what called setsid. With a cgroup the launcher dies too.
func (j *Job) Kill() {
	l := j.launcher
	l.mu.Lock() // the launcher can't become another command's meanwhile
	defer l.mu.Unlock()
	switch {
	case !j.has() || l.grouped && l.group.kill() == nil:
	case l.jobs != nil:
		killTree(l.pid)
	default: // retired, and we are out of fds or memory: nobody else can do it
		time.AfterFunc(killAgain, j.Kill)
	}
}

// has says whether anything of the command may still live. launcher.mu is held.
func (j *Job) has() bool {
	return j.launcher.turn == j.turn && (j.launcher.grouped || j.launcher.jobs != nil)
}

// Left lists what of the command's tree still lives.
func (j *Job) Left() []int {
	l := j.launcher
	l.mu.Lock()
	defer l.mu.Unlock()
	if !j.has() {
		return nil
	}
	if !l.grouped {
		return descendants(l.pid)
	}
	return l.pool.withoutLaunchers(l.group.pids(maxLeft + most))
}

// Settled waits, for a while at most, until a killed tree is really gone.
func (j *Job) Settled(atMost time.Duration) {
	for end := time.Now().Add(atMost); len(j.Left()) > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// begin is called when the command runs.
func (j *Job) begin(pid int) {
	j.PID = pid
	if j.launcher.grouped {
		j.launcher.group.count(1)
		j.counted = true
	}
	j.launcher.pool.register(j)
	j.launcher.pool.begun(j.launcher)
}

func (j *Job) finish(e Exit) {
	j.once.Do(func() {
		j.exit = e
		j.launcher.pool.unregister(j)
		j.launcher.forget(j.id)
		if j.counted {
			j.launcher.group.count(-1)
		}
		close(j.exited)
	})
}

// orphaned is called when the launcher died, unasked, before its command: that is our child now, and was killed.
func (j *Job) orphaned() {
	time.AfterFunc(orphanWait, func() { j.finish(Exit{Status: killed}) })
}
