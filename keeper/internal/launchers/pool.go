package launchers

import (
	"errors"
	"slices"
	"sync"
	"time"
)

const (
	maxLeft      = 1024 // listed leftover pids of one command
	idleSpare    = 10 * time.Second
	spareDelay   = 250 * time.Millisecond // a command that ends sooner returns its launcher in time
	readyWait    = 8 * time.Second        // less than the host's timeout
	startWait    = 8 * time.Second
	takeWait     = 8 * time.Second // the host's timeout is 10 s
	maxLaunchers = 8               // launchers that can move; each has about five threads
	maxMaking    = 4               // launchers being started at the same time
)

// ErrNoLauncher means that no launcher became free in time.
var ErrNoLauncher = errors.New("too many commands are starting")

// Pool owns every launcher. Locks are taken in the order Launcher.mu, Pool.mu; no other lock is taken while Group.mu is
// held.
type Pool struct {
	cgroup int // fd of the sandbox's v2 cgroup, or -1
	null   int
	forker *forker
	making chan struct{} // one token per launcher being started

	mu            sync.Mutex
	all           map[*Launcher]bool
	unreaped      map[int]bool     // pids of launchers, also of ended ones until they are reaped
	idle          []*Launcher      // the last one is taken first
	waiting       []chan *Launcher // in order; nil is sent when another launcher may be started
	slots         int              // launchers that can move, running or being started
	moving        int              // launchers that are about to be in a new group
	warming       bool
	moveScheduled bool // moveAgain is scheduled
	number        int
	job           uint32
	running       map[int]*Job      // by pid, until reaped
	unanswered    int               // starts without an answer
	reaped        map[int]earlyExit // children that ended meanwhile, by pid

	reaping sync.Mutex // held while children are reaped or signalled: an unreaped child keeps its pid

	left      map[*Group]bool // groups without a launcher
	sweeper   *time.Timer
	sweepWait time.Duration // 0: the sweeper is idle
}

// New returns a pool; cgroup is a directory fd or -1.
func New(cgroup int, null int) (*Pool, error) {
	forker, err := newForker()
	if err != nil {
		return nil, err
	}
	p := &Pool{
		cgroup: cgroup, null: null, forker: forker, making: make(chan struct{}, maxMaking), all: map[*Launcher]bool{}, unreaped: map[int]bool{}, running: map[int]*Job{},
		reaped: map[int]earlyExit{}, left: map[*Group]bool{},
	}
	p.sweeper = time.AfterFunc(time.Hour, p.sweep)
	p.sweeper.Stop()
	return p, nil
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

// Take returns a launcher for exclusive use. It returns to the pool by itself when its tree is empty.
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
	warm := p.warming && len(p.waiting) == 0 // the usual case for the first command: it waits for the first launcher
	if !warm && p.movable() <= len(p.waiting)-p.moving && p.claim() {
		p.mu.Unlock()
		return p.make()
	}
	place := make(chan *Launcher, 1)
	p.waiting = append(p.waiting, place)
	p.moveOldest()
	p.mu.Unlock()
	if warm {
		defer time.AfterFunc(spareDelay, p.Warm)
	}
	return p.await(place)
}

// claim takes a slot. Without cgroups launchers cannot move, and only the sandbox's own limits apply. p.mu is held.
func (p *Pool) claim() bool {
	if p.cgroup >= 0 && p.slots >= maxLaunchers {
		return false
	}
	p.slots++
	return true
}

// free passes a slot on to the first waiter. p.mu is held.
func (p *Pool) free() {
	if len(p.waiting) > 0 {
		p.waiting[0] <- nil
		p.waiting = p.waiting[1:]
		return
	}
	p.slots--
}

// await waits for a launcher, or for the slot of one that has gone.
func (p *Pool) await(place chan *Launcher) (*Launcher, error) {
	late := time.NewTimer(takeWait)
	defer late.Stop()
	select {
	case l := <-place:
		return p.makeIfNil(l)
	case <-late.C:
	}
	p.mu.Lock()
	i := slices.Index(p.waiting, place)
	if i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
	}
	p.mu.Unlock()
	if i >= 0 {
		return nil, ErrNoLauncher
	}
	return p.makeIfNil(<-place)
}

func (p *Pool) makeIfNil(l *Launcher) (*Launcher, error) {
	if l == nil {
		return p.make()
	}
	return l, nil
}

// make starts a launcher in a claimed slot.
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

// Warm keeps one launcher idle.
func (p *Pool) Warm() {
	p.mu.Lock()
	if len(p.idle) > 0 || p.warming {
		p.mu.Unlock()
		return
	}
	if len(p.waiting) > 0 || p.oldest() != nil || !p.claim() {
		p.moveOldest()
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

// giveBack returns a launcher with an empty tree: to a waiter, or to the idle ones.
func (p *Pool) giveBack(l *Launcher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.all[l] || l.leaving || l.dismissed || l.helper {
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

// trim ends surplus launchers that have been idle for a while; one stays.
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

// dismiss ends a launcher. Its commands in groups stay. listen then calls drop. p.mu is held.
func (p *Pool) dismiss(l *Launcher) {
	l.dismissed = true
	_ = l.conn.Close()
}

// Renew makes new launchers fork all later commands: a launcher cannot raise a limit again that it has lowered.
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

// drop forgets a launcher that is gone and reports whether it was asked to end.
func (p *Pool) drop(gone *Launcher) (dismissed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, gone)
	if i := slices.Index(p.idle, gone); i >= 0 {
		p.idle = slices.Delete(p.idle, i, i+1)
	}
	if gone.slot {
		gone.slot = false
		p.free()
	}
	if len(p.idle) == 0 {
		time.AfterFunc(spareDelay, p.Warm)
	}
	return gone.dismissed
}

// Busy reports whether any process that a launcher started still lives.
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
