// Package uncharged limits what pins kernel memory which no memory cgroup counts: netlink sockets, in whose queue replies
// wait; UDP sockets, in which a datagram that is to be continued waits; TCP sockets, each of which may always keep some
// data; listening ones, whose connections are charged only when they are accepted; record locks of files; and seccomp
// filters, whose machine code also counts towards one limit of the host. All of these share one budget.
//
// Every command inherits a seccomp filter that stops the calls which make these, and the keeper answers. The filter is on
// one thread of the keeper, from which it forks: its other threads are not stopped. The limits hold for the whole sandbox,
// because the kernel's counters of its network namespace and its processes decide.
package uncharged

import (
	"runtime"
	"syscall"

	"skerry/keeper/internal/linux"
)

const (
	sockTypeMask         = 0xf
	prSetSeccomp         = 22
	seccompModeFilter    = 2
	seccompSetModeFilter = 1
	setOpenFileLock      = 37
	setOpenFileLockWait  = 38
)

// Guard answers the calls that the filter stops. One goroutine uses it.
type Guard struct {
	listener                                                int
	budget                                                  budget
	netlinks, datagrams, streams, listeners, locks, filters kind
	filterCount                                             filterCount
}

// New puts the filter on the calling thread, which must be locked, and answers on another.
func New() (*Guard, error) {
	fd, err := linux.NotifyFilter(filter())
	if err != nil {
		return nil, err
	}
	own, err := statusOf("/proc/thread-self/status")
	if err != nil {
		return nil, err
	}
	g := &Guard{
		listener:    fd,
		filterCount: filterCount{inherited: own.filters, approved: map[int]int{}, installed: map[int]int{}},
		netlinks:    kind{cost: netlinkCost, each: 1, most: maxNetlink, count: netlinks},
		datagrams:   kind{cost: datagramCost, each: 1, count: datagrams},
		streams:     kind{cost: streamCost, each: 1, count: internetSockets},
		listeners:   kind{cost: listenerCost, each: 1, count: listeners},
		locks:       kind{cost: lockCost, each: 2, count: locks}, // 2: the middle of a locked range is unlocked
	}
	g.filters = kind{cost: filterCost, each: 1, most: maxFilters, count: g.filterCount.count}
	g.budget = budget{
		kinds: []*kind{&g.netlinks, &g.datagrams, &g.streams, &g.listeners, &g.locks, &g.filters},
		size:  budgetSize,
		calls: calls{},
	}
	return g, nil
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
	thread := int(n.Thread)
	switch {
	case n.Call == syscall.SYS_LISTEN:
		g.approve(n, g.budget.take(&g.listeners, thread), syscall.ENOBUFS)
	case n.Call == linux.SysSeccomp || n.Call == syscall.SYS_PRCTL:
		g.approve(n, g.budget.take(&g.filters, thread) && g.filterCount.expect(thread), syscall.ENOMEM)
	case n.Call == syscall.SYS_FCNTL:
		g.approve(n, g.budget.take(&g.locks, thread), syscall.ENOLCK)
	case n.Args[0] == syscall.AF_NETLINK:
		g.openNetlink(n)
	case n.Args[1]&sockTypeMask == syscall.SOCK_STREAM:
		g.approve(n, g.budget.take(&g.streams, thread), syscall.ENOBUFS)
	default:
		g.approve(n, g.budget.take(&g.datagrams, thread), syscall.ENOBUFS)
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

// openNetlink opens the socket for the caller, so that the count is exact.
func (g *Guard) openNetlink(n *linux.Notification) {
	thread := int(n.Thread)
	if !g.budget.take(&g.netlinks, thread) {
		linux.RefuseNotification(g.listener, n, syscall.ENOBUFS)
		return
	}
	defer g.budget.calls.ended(thread)
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
