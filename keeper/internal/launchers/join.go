package launchers

import (
	"strconv"

	"skerry/keeper/internal/launchproto"
)

const maxAncestors = 4096

// Join forks another command into the tree of a process, so that it is killed with that tree. ErrUnsent: the process
// belongs to no tree.
func (p *Pool) Join(pid int, r *launchproto.Request, stdio []int) (*Job, error) {
	l, group := p.find(pid)
	if l != nil {
		job, err := l.start(r, stdio, true, group)
		if err != ErrUnsent || group == nil || group == l.current() {
			return job, err
		}
	}
	if group == nil {
		return nil, ErrUnsent
	}
	return p.startInGroup(group, r, stdio)
}

// current returns the group that the launcher is in and stays in; nil: it is about to move.
func (l *Launcher) current() *Group {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.target != nil {
		return nil
	}
	return l.group
}

// find returns the launcher and the group of a process's tree: no launcher if it has moved or gone, and no group if the
// launcher is in none.
func (p *Pool) find(pid int) (*Launcher, *Group) {
	path := groupPath(pid)
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.all {
		switch {
		case !l.grouped || path == "" || l.group.path != path:
		case l.helper || l.dismissed:
			return nil, l.group
		default:
			return l, l.group
		}
	}
	if group := p.leftGroup(pid); group != nil {
		return nil, group
	}
	return p.launcherAncestor(pid), nil
}

// launcherAncestor returns the launcher among a process's ancestors. Launchers are subreapers, so every line of
// ancestors leads to one, even after setsid or daemonising. p.mu is held.
func (p *Pool) launcherAncestor(pid int) *Launcher {
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

// startInGroup starts a command in a group without a launcher: a new launcher joins it, forks, and ends.
func (p *Pool) startInGroup(group *Group, r *launchproto.Request, stdio []int) (*Job, error) {
	p.making <- struct{}{}
	defer func() { <-p.making }()
	l, err := p.launch(group)
	if err != nil {
		return nil, err
	}
	if err := l.await(); err != nil {
		return nil, err
	}
	defer p.endHelper(l)
	if !l.grouped {
		return nil, ErrUnsent
	}
	return l.start(r, stdio, false, nil)
}

func (p *Pool) endHelper(l *Launcher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dismiss(l)
}
