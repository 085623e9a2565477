package pool

import (
	"syscall"
	"time"
)

const (
	sweepDelay = 5 * time.Millisecond
	sweepLimit = 4 * time.Second
)

func (p *Pool) register(j *Job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running[j.PID] = j
}

func (p *Pool) unregister(j *Job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running[j.PID] == j {
		delete(p.running, j.PID)
	}
}

// Reap collects whatever became a child of PID 1: what retired launchers started, and the command of one that died.
func (p *Pool) Reap() {
	p.reaping.Lock()
	defer p.reaping.Unlock()
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
		p.mu.Lock()
		job := p.running[pid]
		p.mu.Unlock()
		if job != nil {
			cpu := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
			job.finish(Exit{Status: status, CPU: cpu, MaxRSS: uint64(usage.Maxrss) << 10})
		}
	}
	p.sweepSoon()
}

// signal reaches the process group of a command that is our own child.
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

// sweepSoon has groups removed whose launchers are gone, if there are any. The last process of such a group is always
// reaped by us, so nothing else has to be watched.
func (p *Pool) sweepSoon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.left) > 0 && (p.sweepWait == 0 || p.sweepWait > sweepDelay) {
		p.sweepWait = sweepDelay
		p.sweeper.Reset(sweepDelay)
	}
}

// sweep removes what is empty. A kernel may count a process for a moment after it was reaped: then it comes again.
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
