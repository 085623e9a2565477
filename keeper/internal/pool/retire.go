package pool

import (
	"time"

	"skerry/keeper/internal/spawn"
)

const (
	settleTime = 10 * time.Millisecond // a command that has run for less may be over soon
	leaveWait  = 5 * time.Second
)

// thin asks as many launchers to retire as are waited for: those that have run their command for longest. p.mu is held.
func (p *Pool) thin() {
	want := len(p.waiting) - p.leaving
	if len(p.idle) == 0 && !p.warming {
		want++
	}
	for want > 0 {
		l := p.oldest()
		if l == nil {
			return // the next one that begins brings us here again
		}
		if time.Since(l.began) < settleTime {
			break
		}
		l.leaving = true
		p.leaving++
		want--
		go l.retire()
	}
	if want > 0 && !p.thinning {
		p.thinning = true
		time.AfterFunc(settleTime, p.thinAgain)
	}
}

func (p *Pool) thinAgain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.thinning = false
	if p.slots >= most {
		p.thin()
	}
}

// oldest is the launcher whose command has run for longest, of those that can retire. p.mu is held.
func (p *Pool) oldest() (found *Launcher) {
	for l := range p.all {
		if l.slot && !l.leaving && !l.began.IsZero() && (found == nil || l.began.Before(found.began)) {
			found = l
		}
	}
	return found
}

// begun notes that a launcher's command runs.
func (p *Pool) begun(l *Launcher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.began.IsZero() {
		l.began = time.Now()
	}
	if len(p.waiting) > 0 {
		p.thin()
	}
}

// retire tells the launcher to leave. What it started lives on in its group.
func (l *Launcher) retire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = true
	if l.pending == 0 {
		l.sayRetire()
	}
}

// sayRetire is said once every start has been answered: a command that we reap before we know its pid would be nobody's.
// l.mu is held.
func (l *Launcher) sayRetire() {
	r := spawn.Request{Kind: spawn.Retire}
	if l.jobs != nil && l.send(r.Encode(), nil) != nil {
		l.kill()
	}
}

// answered is called when a start has led to something.
func (l *Launcher) answered() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending--; l.pending == 0 && l.told {
		l.sayRetire()
	}
}

// parted waits until a launcher that was told to retire has gone.
func (l *Launcher) parted() bool {
	late := time.NewTimer(leaveWait)
	defer late.Stop()
	select {
	case <-l.gone:
		return true
	case <-late.C:
		return false
	}
}
