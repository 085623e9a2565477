package launchers

import (
	"errors"
	"path"
	"syscall"
	"time"

	"skerry/keeper/internal/launchproto"
)

const settleTime = 10 * time.Millisecond // a command that has run for less may end soon

// moveOldest asks as many launchers to move as starts are waiting: those with the longest-running commands. p.mu is
// held.
func (p *Pool) moveOldest() {
	want := len(p.waiting) - p.moving
	if len(p.idle) == 0 && !p.warming {
		want++
	}
	for want > 0 {
		l := p.oldest()
		if l == nil {
			return // the next start calls this function again
		}
		if time.Since(l.began) < settleTime {
			break
		}
		l.leaving = true
		p.moving++
		want--
		go l.move()
	}
	if want > 0 {
		p.moveSoon()
	}
}

// moveSoon calls moveOldest again later. p.mu is held.
func (p *Pool) moveSoon() {
	if !p.moveScheduled {
		p.moveScheduled = true
		time.AfterFunc(settleTime, p.moveAgain)
	}
}

func (p *Pool) moveAgain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moveScheduled = false
	if len(p.idle) == 0 {
		p.moveOldest()
	}
}

// oldest returns the launcher with the longest-running command among those that can move. p.mu is held.
func (p *Pool) oldest() (found *Launcher) {
	for l := range p.all {
		if l.canMove() && (found == nil || l.began.Before(found.began)) {
			found = l
		}
	}
	return found
}

// movable counts the launchers that can move at once. p.mu is held.
func (p *Pool) movable() (n int) {
	for l := range p.all {
		if l.canMove() && time.Since(l.began) >= settleTime {
			n++
		}
	}
	return n
}

func (l *Launcher) canMove() bool {
	return l.slot && l.grouped && !l.leaving && !l.dismissed && !l.began.IsZero()
}

// commandStarted records that a launcher's command runs.
func (p *Pool) commandStarted(l *Launcher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.began.IsZero() {
		l.began = time.Now()
	}
	if len(p.waiting) > 0 {
		p.moveOldest()
	}
}

// errBusy means that a command is being added to the launcher's group.
var errBusy = errors.New("the launcher is starting a command")

// move takes the launcher to a new group and offers it for the next command. A launcher that cannot move ends: its
// commands are not its children, and stay.
func (l *Launcher) move() {
	err := l.moveToNewGroup()
	p := l.pool
	p.mu.Lock()
	p.moving--
	l.leaving = false
	switch {
	case err == errBusy:
		p.moveSoon()
	case err != nil:
		p.dismiss(l)
	}
	p.mu.Unlock()
	if err == nil {
		p.giveBack(l)
	}
}

func (l *Launcher) moveToNewGroup() error {
	group, err := newGroup(l.pool.cgroup, l.pool.nextNumber())
	if err != nil {
		return err
	}
	group.hold()
	if err := l.requestMove(group); err != nil {
		l.pool.abandon(group)
		return err
	}
	late := time.NewTimer(readyWait)
	defer late.Stop()
	select {
	case moved := <-l.moved:
		if moved {
			return nil
		}
	case <-l.gone:
	case <-late.C: // root inside may have stopped the launcher
		l.kill()
	}
	return ErrGone
}

// requestMove sends the request. From then on this launcher adds no command to its old group, and holds both groups.
func (l *Launcher) requestMove(group *Group) error {
	procs, err := group.open("cgroup.procs", syscall.O_WRONLY)
	if err != nil {
		return err
	}
	defer procs.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jobs == nil {
		return ErrGone
	}
	if l.pending > 0 {
		return errBusy
	}
	r := launchproto.Request{Kind: launchproto.Move}
	if err := l.send(r.Encode(), syscall.UnixRights(int(procs.Fd()))); err != nil {
		return err
	}
	l.target = group
	return nil
}

// handleMoved makes the target the launcher's group. The old one stays until it is empty.
func (l *Launcher) handleMoved(moved bool) {
	l.mu.Lock()
	left := l.target
	if moved && left != nil {
		l.pool.mu.Lock()
		left = l.group
		l.target.path = path.Join(path.Dir(left.path), l.target.name)
		l.group, l.target = l.target, nil
		l.pool.mu.Unlock()
		l.jobs, l.empty = map[uint32]*Job{}, true
	}
	l.mu.Unlock()
	if moved && left != nil {
		l.pool.abandon(left)
	}
	l.moved <- moved
}

// abandon releases a group that a launcher has left. It is removed once it is empty.
func (p *Pool) abandon(group *Group) {
	group.unhold()
	p.mu.Lock()
	p.left[group] = true
	p.mu.Unlock()
	p.sweepSoon()
}
