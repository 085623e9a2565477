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
	started  chan syscall.Errno
	exited   chan struct{}
	once     sync.Once
	exit     Exit
}

// killed is the wait status of a process that SIGKILL ended.
const killed = syscall.WaitStatus(syscall.SIGKILL)

// orphanWait is how long a command's own status may take to arrive after its launcher died with it.
const orphanWait = 2 * time.Second

// Exited is closed once the command has ended.
func (j *Job) Exited() <-chan struct{} { return j.exited }

// Exit is valid once Exited is closed.
func (j *Job) Exit() Exit { return j.exit }

// Signal reaches the command's process group, as a terminal's signals do. The launcher sends it, because only the
// parent knows that the pid is still the same process.
func (j *Job) Signal(s syscall.Signal) error {
	l := j.launcher
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, running := l.jobs[j.id]; !running {
		return syscall.ESRCH
	}
	r := spawn.Request{Kind: spawn.Signal, Job: j.id, Signal: uint32(s)}
	return l.send(r.Encode(), nil)
}

// Kill ends the command with its whole tree, also what called setsid. With a cgroup the launcher dies too.
func (j *Job) Kill() {
	l := j.launcher
	l.mu.Lock() // the launcher can't become another command's meanwhile
	defer l.mu.Unlock()
	if !j.has() || l.grouped && l.group.kill() == nil {
		return
	}
	killTree(l.pid)
}

// has says whether anything of the command may still live. launcher.mu is held.
func (j *Job) has() bool {
	return j.launcher.jobs != nil && j.launcher.turn == j.turn
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
	var left []int
	for _, pid := range l.group.pids(maxLeft + 1) {
		if pid != l.pid {
			left = append(left, pid)
		}
	}
	return left
}

// Settled waits, for a while at most, until a killed tree is really gone.
func (j *Job) Settled(atMost time.Duration) {
	limit := time.After(atMost)
	for len(j.Left()) > 0 {
		select {
		case <-j.launcher.gone:
			return
		case <-limit:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

func (j *Job) finish(e Exit) {
	j.once.Do(func() {
		j.exit = e
		j.launcher.pool.unregister(j)
		close(j.exited)
	})
}

// orphaned is called when the launcher died first: the command is our child now, and the reaper will meet it.
func (j *Job) orphaned() {
	time.AfterFunc(orphanWait, func() { j.finish(Exit{Status: killed}) })
}
