package sudo

import (
	"errors"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/pool"
	"skerry/keeper/internal/rights"
	"skerry/keeper/internal/spawn"
)

const (
	maxRequest  = 1 << 20
	maxSessions = 64
	requestTime = 5 * time.Second
)

// Rules say who may, and what a command finds in its environment.
type Rules struct {
	UID       uint32 // may, besides root
	Env       map[string]string
	OpenFiles uint32
	Processes uint32
}

// Door is the keeper's end. It runs commands as another user inside, in the caller's own cgroup, and nothing else.
type Door struct {
	Pool *pool.Pool

	mu       sync.Mutex
	rules    Rules
	listener *os.File // nil: closed
	sessions chan struct{}
}

// NewDoor makes a closed door.
func NewDoor(p *pool.Pool) *Door { return &Door{Pool: p, sessions: make(chan struct{}, maxSessions)} }

func (d *Door) accept(listener *os.File) {
	raw, err := listener.SyscallConn()
	if err != nil {
		return
	}
	for {
		fd := -1
		var acceptErr error
		err := raw.Read(func(l uintptr) bool {
			fd, _, acceptErr = syscall.Accept4(int(l), syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK)
			return acceptErr != syscall.EAGAIN
		})
		switch {
		case err != nil:
			return // closed
		case acceptErr != nil:
			time.Sleep(10 * time.Millisecond)
		default:
			select {
			case d.sessions <- struct{}{}:
				go d.serve(fd)
			default:
				_ = syscall.Close(fd)
			}
		}
	}
}

func (d *Door) serve(fd int) {
	defer func() { <-d.sessions }()
	conn := os.NewFile(uintptr(fd), "sudo")
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(requestTime))
	request, fds, err := spawn.ReceiveFrom(conn, maxRequest)
	defer spawn.CloseAll(fds)
	if err != nil || request.Kind != spawn.Start || len(fds) != 3 || !sound(request) {
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	job, refusal := d.start(fd, request, fds)
	_ = conn.SetWriteDeadline(time.Now().Add(requestTime))
	if job == nil {
		_, _ = conn.Write(refusal.Encode())
		return
	}
	go obey(conn, job)
	<-job.Exited()
	_ = conn.SetWriteDeadline(time.Now().Add(requestTime))
	_, _ = conn.Write(spawn.Event{Kind: spawn.Exited, Value: uint32(job.Exit().Status)}.Encode())
}

// sound refuses what can't be handed to execve.
func sound(r *spawn.Request) bool {
	for _, list := range [][]string{r.Argv, r.Env, {r.Dir, r.User}} {
		for _, s := range list {
			if strings.Contains(s, "\x00") {
				return false
			}
		}
	}
	return len(r.Argv) > 0 && strings.HasPrefix(r.Dir, "/") && r.Terminal <= 1
}

func refused(why uint32) (*pool.Job, spawn.Event) {
	return nil, spawn.Event{Kind: spawn.Refused, Value: why}
}

func (d *Door) start(fd int, r *spawn.Request, stdio []int) (*pool.Job, spawn.Event) {
	d.mu.Lock()
	rules := d.rules
	d.mu.Unlock()
	peer, err := syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	if err != nil || peer.Uid != 0 && peer.Uid != rules.UID {
		return refused(spawn.NotAllowed)
	}
	user, err := accounts.Find(r.User)
	if err != nil {
		return refused(spawn.UnknownUser)
	}
	if r.Terminal == 1 {
		linux.GiveTerminal(stdio[0], peer.Uid, user.UID)
	}
	env, search := environmentOf(user, rules, r, peer)
	job, err := d.Pool.Join(int(peer.Pid), &spawn.Request{
		UID: user.UID, GID: user.GID, Groups: user.Groups, OpenFiles: rules.OpenFiles, Processes: rules.Processes, Dir: r.Dir,
		Path: search, Argv: r.Argv, Env: env, Terminal: r.Terminal,
	}, stdio)
	var errno syscall.Errno
	switch {
	case err == nil:
		return job, spawn.Event{}
	case !errors.As(err, &errno):
		return refused(spawn.NoCommand)
	case rights.Enter(user, r.Dir) != nil:
		return refused(spawn.BadDirectory)
	}
	return nil, spawn.Event{Kind: spawn.Failed, Value: uint32(errno)}
}

// obey passes the shim's signals on. A shim that vanishes takes its command with it.
func obey(conn *os.File, job *pool.Job) {
	for {
		r, err := spawn.Read(conn, 4096)
		if err != nil {
			select {
			case <-job.Exited():
			default:
				_ = job.Signal(syscall.SIGTERM)
			}
			return
		}
		if r.Kind == spawn.Signal && r.Signal > 0 && r.Signal <= 64 {
			_ = job.Signal(syscall.Signal(r.Signal))
		}
	}
}
