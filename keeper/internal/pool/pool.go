// Package pool keeps launchers: at least one idle and warm, more while commands run side by side.
package pool

import (
	"sync"
	"syscall"
	"time"
)

const (
	maxLeft    = 1024 // pids listed of one command's left-overs
	idleSpare  = 10 * time.Second
	spareDelay = 3 * time.Millisecond // a command that is over by then has given its launcher back
	readyWait  = 10 * time.Second
)

// Pool owns every launcher.
type Pool struct {
	cgroup int // fd of the sandbox's v2 cgroup, or -1
	null   int

	mu      sync.Mutex
	all     map[*Launcher]bool
	idle    []*Launcher // the last one is taken first
	making  int
	number  int
	job     uint32
	running map[int]*Job // by pid, until it has been reaped
}

// New makes a pool; cgroup is a directory fd or -1.
func New(cgroup int, null int) *Pool {
	return &Pool{cgroup: cgroup, null: null, all: map[*Launcher]bool{}, running: map[int]*Job{}}
}

func (p *Pool) nextNumber() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number++
	return p.number
}

func (p *Pool) nextJob() uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.job++
	return p.job
}

// Take returns a launcher that nobody else uses; it comes back by itself when its tree is empty.
func (p *Pool) Take() (*Launcher, error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		l := p.idle[n-1]
		p.idle = p.idle[:n-1]
		last := n == 1
		p.mu.Unlock()
		if last {
			time.AfterFunc(spareDelay, p.Warm)
		}
		return l, nil
	}
	p.mu.Unlock()
	return p.make()
}

func (p *Pool) make() (*Launcher, error) {
	l, err := p.launch()
	if err != nil {
		return nil, err
	}
	select {
	case <-l.ready:
		return l, nil
	case <-l.gone:
		return nil, ErrGone
	case <-time.After(readyWait):
		_ = syscall.Kill(l.pid, syscall.SIGKILL)
		return nil, ErrGone
	}
}

// Warm sees to it that one launcher is idle.
func (p *Pool) Warm() {
	p.mu.Lock()
	if len(p.idle) > 0 || p.making > 0 {
		p.mu.Unlock()
		return
	}
	p.making++
	p.mu.Unlock()
	l, err := p.make()
	p.mu.Lock()
	p.making--
	p.mu.Unlock()
	if err == nil {
		p.giveBack(l)
	}
}

func (p *Pool) giveBack(l *Launcher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.all[l] {
		return
	}
	l.since = time.Now()
	p.idle = append(p.idle, l)
	if len(p.idle) > 1 {
		time.AfterFunc(idleSpare+time.Second, p.trim)
	}
}

// trim lets surplus launchers go that have been idle for a while; one stays.
func (p *Pool) trim() {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := p.idle[:0]
	surplus := len(p.idle) - 1
	for _, l := range p.idle {
		if surplus > 0 && time.Since(l.since) >= idleSpare {
			surplus--
			delete(p.all, l)
			_ = l.conn.Close()
			continue
		}
		kept = append(kept, l)
	}
	clear(p.idle[len(kept):])
	p.idle = kept
}

// drop forgets a launcher that is gone.
func (p *Pool) drop(gone *Launcher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, gone)
	for i, l := range p.idle {
		if l == gone {
			p.idle = append(p.idle[:i], p.idle[i+1:]...)
			break
		}
	}
	if len(p.idle) == 0 {
		time.AfterFunc(spareDelay, p.Warm)
	}
}

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

// Reaped tells the pool what the keeper's own reaper collected: the command of a launcher that died with it.
func (p *Pool) Reaped(pid int, status syscall.WaitStatus, usage syscall.Rusage) {
	p.mu.Lock()
	job := p.running[pid]
	p.mu.Unlock()
	if job != nil {
		cpu := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		job.finish(Exit{Status: status, CPU: cpu, MaxRSS: uint64(usage.Maxrss) << 10})
	}
}

// Busy says whether anything that a launcher started still lives.
func (p *Pool) Busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.all {
		if l.busy() {
			return true
		}
	}
	return false
}
