package pool

import (
	"strconv"

	"skerry/keeper/internal/spawn"
)

const maxAncestors = 4096

// Join forks a further command into the tree that a process belongs to, so that they share its fate. ErrUnsent: it
// belongs to none.
func (p *Pool) Join(pid int, r *spawn.Request, stdio []int) (*Job, error) {
	l, group := p.find(pid)
	if l != nil {
		job, err := l.start(r, stdio, true)
		if err != ErrUnsent || !l.isTold() || !l.parted() {
			return job, err
		}
		group = l.group
	}
	if group == nil {
		return nil, ErrUnsent
	}
	return p.help(group, r, stdio)
}

// find returns the launcher of a process's tree, or the group that has none any more.
func (p *Pool) find(pid int) (*Launcher, *Group) {
	path := groupPath(pid)
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.all {
		if l.grouped && !l.helper && path != "" && l.group.path == path {
			return l, nil
		}
	}
	if group := p.leftGroup(pid); group != nil {
		return nil, group
	}
	return p.above(pid), nil
}

// above returns the launcher in a process's line of parents. Launchers are subreapers: whatever a process did, its line
// leads there. p.mu is held.
func (p *Pool) above(pid int) *Launcher {
	launchers := make(map[int]*Launcher, len(p.all))
	for l := range p.all {
		launchers[l.pid] = l
	}
	for range maxAncestors {
		if l := launchers[pid]; l != nil {
			return l
		}
		parent, state := parentOf(strconv.Itoa(pid))
		if state == 0 || parent <= 1 {
			return nil
		}
		pid = parent
	}
	return nil
}

// help starts a command in a group that has no launcher: a new one joins it, forks, and leaves again.
func (p *Pool) help(group *Group, r *spawn.Request, stdio []int) (*Job, error) {
	p.making <- struct{}{}
	defer func() { <-p.making }()
	l, err := p.launch(group)
	if err != nil {
		return nil, err
	}
	if err := l.await(); err != nil {
		return nil, err
	}
	defer l.retire()
	if !l.grouped {
		return nil, ErrUnsent
	}
	return l.start(r, stdio, false)
}

func (l *Launcher) isTold() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told
}
