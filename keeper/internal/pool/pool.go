// Package pool keeps launchers: at least one idle and warm, a few more while commands run side by side. When it gets
// crowded, those that have run a command for longest retire, and their commands become the keeper's own children.
package pool

import (
	"errors"
	"slices"
	"sync"
	"time"
)

const (
	maxLeft    = 1024 // pids listed of one command's left-overs
	idleSpare  = 10 * time.Second
	spareDelay = 25 * time.Millisecond // a command that is over by then has given its launcher back
	readyWait  = 8 * time.Second       // less than the host waits for an answer
	startWait  = 8 * time.Second
	takeWait   = 8 * time.Second // the host waits 10 for an answer
	most       = 8               // launchers that can retire, at one time: each is five threads or so
	makers     = 4               // launchers that are made at the same time
)

// ErrCrowded means that no launcher became free in time.
var ErrCrowded = errors.New("too many commands are being started")

// Pool owns every launcher. Locks are taken in the order Launcher.mu, Pool.mu; Group.mu is never held for another.
type Pool struct {
	cgroup int // fd of the sandbox's v2 cgroup, or -1
	null   int
	making chan struct{} // a token for each launcher in the making

	mu       sync.Mutex
	all      map[*Launcher]bool
	idle     []*Launcher      // the last one is taken first
	waiting  []chan *Launcher // in order; nil is sent when there is room for another one
	slots    int              // of those that can retire: alive, or in the making
	leaving  int              // told to retire, and not gone yet
	warming  bool
	thinning bool // a further look is due
	number   int
	job      uint32
	running  map[int]*Job // by pid, until it has been reaped

	reaping sync.Mutex // held while children are reaped, and while one is signalled: until then its pid is its own

	left      map[*Group]bool // their launchers are gone
	sweeper   *time.Timer
	sweepWait time.Duration // 0: the sweeper rests
}

// New makes a pool; cgroup is a directory fd or -1.
func New(cgroup int, null int) *Pool {
	p := &Pool{
		cgroup: cgroup, null: null, making: make(chan struct{}, makers), all: map[*Launcher]bool{}, running: map[int]*Job{},
		left: map[*Group]bool{},
	}
	p.sweeper = time.AfterFunc(time.Hour, p.sweep)
	p.sweeper.Stop()
	return p
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
	if p.claim() {
		p.mu.Unlock()
		return p.make()
	}
	turn := make(chan *Launcher, 1)
	p.waiting = append(p.waiting, turn)
	p.thin()
	p.mu.Unlock()
	return p.await(turn)
}

// claim takes a slot. Without cgroups launchers can't retire: then there is no bound but the sandbox's own. p.mu is held.
func (p *Pool) claim() bool {
	if p.cgroup >= 0 && p.slots >= most {
		return false
	}
	p.slots++
	return true
}

// free passes a slot on to whoever waits. p.mu is held.
func (p *Pool) free() {
	if len(p.waiting) > 0 {
		p.waiting[0] <- nil
		p.waiting = p.waiting[1:]
		return
	}
	p.slots--
}

// await waits for a launcher, or for the slot of one that has left.
func (p *Pool) await(turn chan *Launcher) (*Launcher, error) {
	late := time.NewTimer(takeWait)
	defer late.Stop()
	select {
	case l := <-turn:
		return p.given(l)
	case <-late.C:
	}
	p.mu.Lock()
	i := slices.Index(p.waiting, turn)
	if i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
	}
	p.mu.Unlock()
	if i >= 0 {
		return nil, ErrCrowded
	}
	return p.given(<-turn)
}

func (p *Pool) given(l *Launcher) (*Launcher, error) {
	if l == nil {
		return p.make()
	}
	return l, nil
}

// make uses up a slot that was claimed.
func (p *Pool) make() (*Launcher, error) {
	p.making <- struct{}{}
	defer func() { <-p.making }()
	l, err := p.launch(nil)
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.free()
		return nil, err
	}
	return l, l.await()
}

// Warm sees to it that one launcher is idle.
func (p *Pool) Warm() {
	p.mu.Lock()
	if len(p.idle) > 0 || p.warming {
		p.mu.Unlock()
		return
	}
	if len(p.waiting) > 0 || !p.claim() {
		p.thin()
		p.mu.Unlock()
		return
	}
	p.warming = true
	p.mu.Unlock()
	l, err := p.make()
	p.mu.Lock()
	p.warming = false
	p.mu.Unlock()
	if err == nil {
		p.giveBack(l)
	}
}

func (p *Pool) giveBack(l *Launcher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.all[l] || l.leaving || l.helper {
		return
	}
	l.began = time.Time{}
	if l.stale {
		p.dismiss(l)
		return
	}
	if len(p.waiting) > 0 {
		p.waiting[0] <- l
		p.waiting = p.waiting[1:]
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
			p.dismiss(l)
			continue
		}
		kept = append(kept, l)
	}
	clear(p.idle[len(kept):])
	p.idle = kept
}

// dismiss lets an idle launcher go; drop hears of it. p.mu is held.
func (p *Pool) dismiss(l *Launcher) {
	delete(p.all, l)
	_ = l.conn.Close()
}

// Renew has every later command forked by a new launcher: what one has lowered for its commands it can't raise again.
func (p *Pool) Renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.all {
		l.stale = true
	}
	for _, l := range p.idle {
		p.dismiss(l)
	}
	p.idle = nil
	time.AfterFunc(spareDelay, p.Warm)
}

// drop forgets a launcher that is gone.
func (p *Pool) drop(gone *Launcher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, gone)
	if i := slices.Index(p.idle, gone); i >= 0 {
		p.idle = slices.Delete(p.idle, i, i+1)
	}
	if gone.leaving {
		p.leaving--
	}
	if gone.slot {
		gone.slot = false
		p.free()
	}
	if len(p.idle) == 0 {
		time.AfterFunc(spareDelay, p.Warm)
	}
}

// Busy says whether anything that a launcher started still lives.
func (p *Pool) Busy() bool {
	p.mu.Lock()
	launchers, groups := keys(p.all), keys(p.left)
	p.mu.Unlock()
	return slices.ContainsFunc(launchers, (*Launcher).busy) || slices.ContainsFunc(groups, (*Group).alive)
}

func keys[K comparable](set map[K]bool) []K {
	list := make([]K, 0, len(set))
	for key := range set {
		list = append(list, key)
	}
	return list
}
