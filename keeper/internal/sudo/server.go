package sudo

import (
	"errors"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/launchers"
	"skerry/keeper/internal/launchproto"
	"skerry/keeper/internal/linux"
)

const (
	maxRequest  = 1 << 20
	maxSessions = 64
	requestTime = 5 * time.Second
)

// Rules define the permitted caller and the properties of its commands.
type Rules struct {
	UID       uint32 // permitted, besides root
	Env       map[string]string
	OpenFiles uint32
	Processes uint32
}

// Server is the keeper's end. It runs commands as another user of the sandbox in the caller's cgroup, and nothing else.
type Server struct {
	Pool *launchers.Pool

	mu       sync.Mutex
	rules    Rules
	listener *os.File // nil: closed
	sessions chan struct{}
}

// NewServer returns a closed server.
func NewServer(p *launchers.Pool) *Server {
	return &Server{Pool: p, sessions: make(chan struct{}, maxSessions)}
}

// accept serves clients, at most maxSessions at a time. Further ones are refused at once, because any program inside
// may connect.
func (s *Server) accept(listener *os.File) {
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
			case s.sessions <- struct{}{}:
				go s.serve(fd)
			default:
				_ = syscall.Close(fd)
			}
		}
	}
}

// serve runs one command for a client and reports its exit.
func (s *Server) serve(fd int) {
	defer func() { <-s.sessions }()
	conn := os.NewFile(uintptr(fd), "sudo")
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(requestTime))
	request, fds, err := launchproto.ReceiveFrom(conn, maxRequest)
	defer launchproto.CloseAll(fds)
	if err != nil || request.Kind != launchproto.Start || len(fds) != 3 || !valid(request) {
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	job, refusal := s.start(fd, request, fds)
	_ = conn.SetWriteDeadline(time.Now().Add(requestTime))
	if job == nil {
		_, _ = conn.Write(refusal.Encode())
		return
	}
	go forwardSignals(conn, job)
	<-job.Exited()
	_ = conn.SetWriteDeadline(time.Now().Add(requestTime))
	_, _ = conn.Write(launchproto.Event{Kind: launchproto.Exited, Value: uint32(job.Exit().Status)}.Encode())
}

// valid rejects strings that cannot be passed to execve.
func valid(r *launchproto.Request) bool {
	for _, list := range [][]string{r.Argv, r.Env, {r.Dir, r.User}} {
		for _, s := range list {
			if strings.Contains(s, "\x00") {
				return false
			}
		}
	}
	return len(r.Argv) > 0 && strings.HasPrefix(r.Dir, "/") && r.Terminal <= 1
}

func refused(why uint32) (*launchers.Job, launchproto.Event) {
	return nil, launchproto.Event{Kind: launchproto.Refused, Value: why}
}

// start checks the caller's identity, which the kernel provides, and starts the command in the caller's tree.
func (s *Server) start(fd int, r *launchproto.Request, stdio []int) (*launchers.Job, launchproto.Event) {
	s.mu.Lock()
	rules := s.rules
	s.mu.Unlock()
	peer, err := syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	if err != nil || peer.Uid != 0 && peer.Uid != rules.UID {
		return refused(launchproto.NotAllowed)
	}
	user, err := accounts.Find(r.User)
	if err != nil {
		return refused(launchproto.UnknownUser)
	}
	if r.Terminal == 1 {
		linux.GiveTerminal(stdio[0], peer.Uid, user.UID)
	}
	env, search := environmentOf(user, rules, r, peer)
	job, err := s.Pool.Join(int(peer.Pid), &launchproto.Request{
		UID: user.UID, GID: user.GID, Groups: user.Groups, OpenFiles: rules.OpenFiles, Processes: rules.Processes, Dir: r.Dir,
		Path: search, Argv: r.Argv, Env: env, Terminal: r.Terminal,
	}, stdio)
	var errno syscall.Errno
	switch {
	case err == nil:
		return job, launchproto.Event{}
	case !errors.As(err, &errno):
		return refused(launchproto.NoCommand)
	case asuser.Enter(user, r.Dir) != nil:
		return refused(launchproto.BadDirectory)
	}
	return nil, launchproto.Event{Kind: launchproto.Failed, Value: uint32(errno)}
}

// forwardSignals passes on the client's signals. If the client vanishes, its command is asked to end.
func forwardSignals(conn *os.File, job *launchers.Job) {
	for {
		r, err := launchproto.Read(conn, 4096)
		if err != nil {
			select {
			case <-job.Exited():
			default:
				_ = job.Signal(syscall.SIGTERM)
			}
			return
		}
		if r.Kind == launchproto.Signal && r.Signal > 0 && r.Signal <= 64 {
			_ = job.Signal(syscall.Signal(r.Signal))
		}
	}
}
