package pool

import (
	"os"
	"syscall"
	"time"

	"skerry/keeper/internal/launcher"
)

// launch starts a launcher, in a group of its own or in one that has lost its own.
func (p *Pool) launch(group *Group) (*Launcher, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = syscall.Close(pair[1]) }()
	l := &Launcher{
		pool: p, ready: make(chan struct{}), gone: make(chan struct{}), jobs: map[uint32]*Job{}, empty: true,
		slot: group == nil, helper: group != nil,
	}
	null := uintptr(p.null)
	attr := &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{null, null, null, uintptr(pair[1])}, Env: []string{"GOMAXPROCS=2"},
		Sys: &syscall.SysProcAttr{Setsid: true},
	}
	if procs := l.enter(group); procs != nil {
		defer procs.Close()
		attr.Files = append(attr.Files, procs.Fd()) // a cgroup file is never in the poller: Fd changes nothing
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

// fork starts the process. The pool knows it before anybody can see it: to killStrays it is never a stray.
func (p *Pool) fork(l *Launcher, attr *syscall.ProcAttr) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.pid, err = syscall.ForkExec("/proc/self/exe", []string{"skerry-keeper", "launcher"}, attr); err == nil {
		p.all[l] = true
	}
	return err
}

// enter returns the cgroup.procs of the group that the launcher is to join; nil: it goes without.
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

// leave gives up the hold on the group: once it is empty it can go.
func (l *Launcher) leave() {
	if l.group == nil {
		return
	}
	l.group.letGo()
	l.pool.mu.Lock()
	l.pool.left[l.group] = true
	l.pool.mu.Unlock()
	l.pool.sweepSoon()
}

// await waits until the launcher can be asked.
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

// kill ends a launcher that is of no use.
func (l *Launcher) kill() { _ = syscall.Kill(l.pid, syscall.SIGKILL) }

// arrived notes whether a launcher sits in its group; one that does not can never retire.
func (p *Pool) arrived(l *Launcher, grouped bool) {
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
