package launchers

import (
	"maps"
	"syscall"
	"time"
)

const (
	maxReaped  = 1024
	sweepDelay = 5 * time.Millisecond
	sweepLimit = 4 * time.Second
)

// earlyExit is the end of a child that was reaped while a start was unanswered: it may be the started command.
type earlyExit struct {
	Exit
	at time.Time
}

// starting is called before a request is sent, and answered once its job is registered or has failed.
func (p *Pool) starting() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unanswered++
}

func (p *Pool) answered(starts int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unanswered -= starts; p.unanswered == 0 {
		clear(p.reaped)
	}
}

// register makes the keeper reap the job. If it has done so, register returns how the command ended; an older end is of
// another process that had the pid before.
func (p *Pool) register(j *Job) *Exit {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e, ended := p.reaped[j.PID]; ended && e.at.After(j.sent) {
		delete(p.reaped, j.PID)
		return &e.Exit
	}
	p.running[j.PID] = j
	return nil
}

// ended returns the job of a reaped child; nil: it is no command, or its pid is not known yet.
func (p *Pool) ended(pid int, e Exit) *Job {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.unreaped, pid)
	job := p.running[pid]
	if job == nil && p.unanswered > 0 {
		now := time.Now()
		if len(p.reaped) >= maxReaped {
			maps.DeleteFunc(p.reaped, func(_ int, old earlyExit) bool { return now.Sub(old.at) > startWait })
		}
		p.reaped[pid] = earlyExit{e, now}
	}
	return job
}

func (p *Pool) unregister(j *Job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running[j.PID] == j {
		delete(p.running, j.PID)
	}
}

// Reap collects the children of PID 1: commands, and processes that they left behind.
func (p *Pool) Reap() {
	p.reaping.Lock()
	defer p.reaping.Unlock()
	leftover := false
	for {
		var status syscall.WaitStatus
		var usage syscall.Rusage
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, &usage)
		if err == syscall.EINTR {
			continue
		}
		if pid <= 0 || err != nil {
			break
		}
		cpu := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		e := Exit{Status: status, CPU: cpu, MaxRSS: uint64(usage.Maxrss) << 10}
		if job := p.ended(pid, e); job != nil {
			job.finish(e)
		} else {
			leftover = true
		}
	}
	p.sweepSoon()
	if leftover {
		p.settleGroups()
	}
}

// settleGroups is called after the end of a process that a command left behind: it may have been the last of its group.
func (p *Pool) settleGroups() {
	p.mu.Lock()
	launchers := keys(p.all)
	p.mu.Unlock()
	for _, l := range launchers {
		if l.grouped {
			l.settleGroup()
		}
	}
}

// signal signals the process group of a command that is the keeper's own child.
func (p *Pool) signal(j *Job, s syscall.Signal) error {
	p.reaping.Lock()
	defer p.reaping.Unlock()
	p.mu.Lock()
	running := p.running[j.PID] == j
	p.mu.Unlock()
	if !running {
		return syscall.ESRCH
	}
	return syscall.Kill(-j.PID, s)
}

// sweepSoon schedules the removal of groups without a launcher. The keeper always reaps the last process of such
// a group, so nothing else needs watching.
func (p *Pool) sweepSoon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.left) > 0 && (p.sweepWait == 0 || p.sweepWait > sweepDelay) {
		p.sweepWait = sweepDelay
		p.sweeper.Reset(sweepDelay)
	}
}

// sweep removes empty groups. The kernel may count a process for a moment after it was reaped; then sweep runs again.
func (p *Pool) sweep() {
	p.mu.Lock()
	groups, waited := keys(p.left), p.sweepWait
	p.sweepWait = 0
	p.mu.Unlock()
	again := false
	for _, g := range groups {
		if g.remove() {
			p.mu.Lock()
			delete(p.left, g)
			p.mu.Unlock()
		} else if !g.alive() {
			again = true
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if again && p.sweepWait == 0 && waited < sweepLimit {
		p.sweepWait = 2 * waited
		p.sweeper.Reset(p.sweepWait)
	}
}
