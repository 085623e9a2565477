package launchers

import (
	"os"
	"syscall"
	"time"

	"skerry/keeper/internal/launcher"
)

// launch starts a launcher, in a new group or in one that has lost its launcher.
func (p *Pool) launch(group *Group) (*Launcher, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = syscall.Close(pair[1]) }()
	l := &Launcher{
		pool: p, ready: make(chan struct{}), moved: make(chan bool, 1), gone: make(chan struct{}),
		jobs: map[uint32]*Job{}, empty: true, slot: group == nil, helper: group != nil,
	}
	null := uintptr(p.null)
	// One thread for Go code: a launcher forks or reaps, and with two the runtime wakes threads that find nothing to do.
	attr := &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{null, null, null, uintptr(pair[1])}, Env: []string{"GOMAXPROCS=1"},
		Sys: &syscall.SysProcAttr{Setsid: true},
	}
	if procs := l.enter(group); procs != nil {
		defer procs.Close()
		attr.Files = append(attr.Files, procs.Fd()) // a cgroup file is never in the poller, so Fd has no side effect
		attr.Env = append(attr.Env, launcher.GroupEnv+"=1")
	}
	if err = p.fork(l, attr); err != nil {
		_ = syscall.Close(pair[0])
		l.leave()
		return nil, err
	}
	_ = syscall.SetNonblock(pair[0], true)
	l.conn = os.NewFile(uintptr(pair[0]), "launcher")
	go l.listen()
	return l, nil
}

// fork starts the process. The pool knows it before any other goroutine can see it, so that killStrays never takes it
// for a stray.
func (p *Pool) fork(l *Launcher, attr *syscall.ProcAttr) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.pid, err = p.forker.fork(attr); err == nil {
		p.all[l] = true
		p.unreaped[l.pid] = true
	}
	return err
}

// enter opens cgroup.procs of the group that the launcher will join; nil: it runs without a group.
func (l *Launcher) enter(group *Group) *os.File {
	if l.pool.cgroup < 0 {
		return nil
	}
	var err error
	if group == nil {
		if group, err = newGroup(l.pool.cgroup, l.pool.nextNumber()); err != nil {
			return nil
		}
	}
	if !group.hold() {
		return nil
	}
	l.group = group
	procs, err := group.open("cgroup.procs", syscall.O_WRONLY)
	if err != nil {
		return nil
	}
	return procs
}

// leave releases the launcher's groups, which can be removed once they are empty.
func (l *Launcher) leave() {
	l.mu.Lock()
	groups := []*Group{l.group, l.target}
	l.mu.Unlock()
	for _, group := range groups {
		if group != nil {
			l.pool.abandon(group)
		}
	}
}

// await waits until the launcher accepts requests.
func (l *Launcher) await() error {
	late := time.NewTimer(readyWait)
	defer late.Stop()
	select {
	case <-l.ready:
		return nil
	case <-l.gone:
	case <-late.C:
		l.kill()
	}
	return ErrGone
}

// kill ends a useless launcher.
func (l *Launcher) kill() { _ = syscall.Kill(l.pid, syscall.SIGKILL) }

// setGrouped records whether a launcher is in its group. A launcher without a group can never move.
func (p *Pool) setGrouped(l *Launcher, grouped bool) {
	path := ""
	if grouped {
		path = groupPath(l.pid)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.grouped = path != ""; l.grouped {
		l.group.path = path
	} else if l.slot {
		l.slot = false
		p.free()
	}
}
