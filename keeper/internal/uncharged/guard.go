// Package uncharged limits what pins kernel memory which no memory cgroup counts: netlink sockets, in whose queue replies
// wait; UDP sockets, in which a datagram that is to be continued waits; TCP sockets, each of which may always keep some
// data; listening ones, whose connections are charged only when they are accepted; record locks of files; and seccomp filters, whose machine code also counts
// towards one limit of the host.
//
// Every command inherits a seccomp filter that stops the calls which make these, and the keeper answers. The filter is on
// one thread of the keeper, from which it forks: its other threads are not stopped. The limits hold for the whole sandbox,
// because the kernel's counters of its network namespace and its processes decide.
package uncharged

import (
	"runtime"
	"syscall"
	"time"

	"skerry/keeper/internal/linux"
)

const (
	// A call approved longer ago is in the kernel's counters
	recentTime = 50 * time.Millisecond
	retryTime  = time.Millisecond

	sockTypeMask         = 0xf
	prSetSeccomp         = 22
	seccompModeFilter    = 2
	seccompSetModeFilter = 1
	setOpenFileLock      = 37
	setOpenFileLockWait  = 38
)

// Guard answers the calls that the filter stops. One goroutine uses it.
type Guard struct {
	listener                             int
	datagrams, streams, listeners, locks quota
	filters                              filterQuota
}

// quota is an upper bound of a number of sockets or locks: the last count plus what the calls approved since may add.
type quota struct {
	bound  int
	most   int
	each   int         // the most that one call adds
	recent []time.Time // approved calls that a count may miss
	count  func() int
	limit  func() int
}

// New puts the filter on the calling thread, which must be locked, and answers on another.
func New() (*Guard, error) {
	fd, err := linux.NotifyFilter(filter())
	if err != nil {
		return nil, err
	}
	inherited, err := filtersOf("/proc/thread-self/status")
	if err != nil {
		return nil, err
	}
	return &Guard{
		listener:  fd,
		filters:   filterQuota{inherited: inherited, approved: map[int]int{}},
		datagrams: quota{each: 1, count: datagrams, limit: maxDatagrams},
		streams:   quota{each: 1, count: internetSockets, limit: maxStreams},
		listeners: quota{each: 1, count: listeners, limit: maxListeners},
		locks:     quota{each: 2, count: locks, limit: maxLocks}, // 2: the middle of a locked range is unlocked
	}, nil
}

// Serve answers until the end of the sandbox.
func (g *Guard) Serve() {
	runtime.LockOSThread() // it waits in the kernel
	for {
		n, err := linux.ReceiveNotification(g.listener)
		switch err {
		case nil:
			g.answer(n)
		case syscall.EINTR, syscall.ENOENT: // ENOENT: the caller was killed
		default:
			return
		}
	}
}

func (g *Guard) answer(n *linux.Notification) {
	switch {
	case n.Call == syscall.SYS_LISTEN:
		g.approve(n, g.listeners.take(), syscall.ENOBUFS)
	case n.Call == linux.SysSeccomp || n.Call == syscall.SYS_PRCTL:
		g.approve(n, g.filters.take(int(n.Thread)), syscall.ENOMEM)
	case n.Call == syscall.SYS_FCNTL:
		g.approve(n, g.locks.take(), syscall.ENOLCK)
	case n.Args[0] == syscall.AF_NETLINK:
		g.openNetlink(n)
	case n.Args[1]&sockTypeMask == syscall.SOCK_STREAM:
		g.approve(n, g.streams.take(), syscall.ENOBUFS)
	default:
		g.approve(n, g.datagrams.take(), syscall.ENOBUFS)
	}
}

// approve lets the caller continue if its quota allows it.
func (g *Guard) approve(n *linux.Notification, allowed bool, refusal syscall.Errno) {
	if allowed {
		linux.ContinueNotification(g.listener, n)
	} else {
		linux.RefuseNotification(g.listener, n, refusal)
	}
}

// take counts only when the bound is reached, because a count takes about 0.1 ms.
func (q *quota) take() bool {
	for q.bound >= q.most {
		q.most = q.limit()
		counted := q.count()
		for len(q.recent) > 0 && time.Since(q.recent[0]) > recentTime {
			q.recent = q.recent[1:]
		}
		if counted >= q.most {
			return false
		}
		if q.bound = counted + q.each*len(q.recent); q.bound >= q.most {
			time.Sleep(retryTime) // until recently approved calls are in the count
		}
	}
	q.bound += q.each
	q.recent = append(q.recent, time.Now())
	return true
}

// openNetlink opens the socket for the caller, so that the count is exact.
func (g *Guard) openNetlink(n *linux.Notification) {
	if netlinks() >= maxNetlink {
		linux.RefuseNotification(g.listener, n, syscall.ENOBUFS)
		return
	}
	kind := int(int32(n.Args[1]))
	fd, err := syscall.Socket(syscall.AF_NETLINK, kind|syscall.SOCK_CLOEXEC, syscall.NETLINK_ROUTE)
	if err == nil {
		err = linux.AnswerWithFD(g.listener, n, fd, kind&syscall.SOCK_CLOEXEC != 0)
		_ = syscall.Close(fd)
	}
	if errno, ok := err.(syscall.Errno); ok {
		linux.RefuseNotification(g.listener, n, errno)
	}
}

// filter stops the calls that the package limits and allows all others, except two that would make a count wrong. The
// runtime's filter decides as well, and the stricter answer wins: it has checked the ABI and the protocols.
func filter() []syscall.SockFilter {
	return assemble([]rule{
		{call: syscall.SYS_LISTEN, action: notify},
		{call: syscall.SYS_SOCKET, checks: []check{{argument: 0, equal: syscall.AF_NETLINK}}, action: notify},
		{call: syscall.SYS_SOCKET, checks: []check{{argument: 0, equal: syscall.AF_INET}}, action: notify},
		{call: syscall.SYS_SOCKET, checks: []check{{argument: 0, equal: syscall.AF_INET6}}, action: notify},
		{call: syscall.SYS_PRCTL, checks: []check{
			{argument: 0, equal: prSetSeccomp}, {argument: 1, equal: seccompModeFilter},
		}, action: notify},
		{call: uint32(linux.SysSeccomp), checks: []check{{argument: 0, equal: seccompSetModeFilter}}, action: notify},
		{call: syscall.SYS_FCNTL, checks: []check{{argument: 1, equal: syscall.F_SETLK}}, action: notify},
		{call: syscall.SYS_FCNTL, checks: []check{{argument: 1, equal: syscall.F_SETLKW}}, action: notify},
		// Nothing counts the locks of an open file: one in a message of a unix socket belongs to no process.
		{call: syscall.SYS_FCNTL, checks: []check{{argument: 1, equal: setOpenFileLock}}, action: invalid},
		{call: syscall.SYS_FCNTL, checks: []check{{argument: 1, equal: setOpenFileLockWait}}, action: invalid},
		// A process that shared its open files with another could leave its locks to it and end: the kernel would not
		// list them any more.
		{call: syscall.SYS_CLONE, checks: []check{
			{argument: 0, mask: syscall.CLONE_FILES | syscall.CLONE_THREAD, equal: syscall.CLONE_FILES},
		}, action: invalid},
	})
}
