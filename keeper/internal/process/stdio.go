package process

import (
	"errors"
	"os"
	"syscall"

	"skerry/keeper/internal/launchproto"
	"skerry/keeper/internal/linux"
)

// ErrTerminal means that the process has no terminal to resize.
var ErrTerminal = errors.New("the process has no terminal")

// ends are both ends of a command's stdin, stdout, stderr and channel: ours are in the poller, the program's are
// blocking, as programs expect.
type ends struct {
	ours   [4]*os.File
	inside []int
}

// try starts the command on one launcher. The program's ends are closed here in any case: the launcher has its copies.
func (t *Table) try(p *Process, request *launchproto.Request) error {
	launcher, err := t.Pool.Take()
	if err != nil {
		return err
	}
	made, err := t.stdio(p)
	if err != nil {
		launcher.Release()
		return err
	}
	p.stdin, p.out, p.err, p.channel = made.ours[0], made.ours[1], made.ours[2], made.ours[3]
	p.job, err = launcher.Start(request, made.inside)
	t.closeInside(made)
	if err != nil {
		p.closeFiles()
	}
	return err
}

// stdio makes the pipes, and the channel if requested. Our ends are non-blocking before a goroutine uses them.
func (t *Table) stdio(p *Process) (ends, error) {
	if p.Request.Pty != nil {
		return terminal(p)
	}
	made := ends{inside: []int{t.Null, t.Null, t.Null}}
	for i := range 3 {
		if i == 0 && p.Request.Stdin != "pipe" {
			continue
		}
		var pipe [2]int
		if err := syscall.Pipe2(pipe[:], syscall.O_CLOEXEC); err != nil {
			t.closeAll(made)
			return ends{}, err
		}
		mine, theirs := pipe[0], pipe[1]
		if i == 0 {
			mine, theirs = theirs, mine
		}
		_ = syscall.SetNonblock(mine, true)
		made.ours[i], made.inside[i] = os.NewFile(uintptr(mine), "pipe"), theirs
	}
	if p.Channel {
		pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.closeAll(made)
			return ends{}, err
		}
		_ = syscall.SetNonblock(pair[0], true)
		made.ours[3], made.inside = os.NewFile(uintptr(pair[0]), "channel"), append(made.inside, pair[1])
	}
	return made, nil
}

// terminal opens one terminal for all three.
func terminal(p *Process) (ends, error) {
	outer, inner, err := linux.OpenTerminal(p.User.UID, p.Request.Pty.window())
	switch err {
	case nil:
	case syscall.ENOENT, syscall.ENODEV, syscall.ENOTDIR, syscall.ELOOP, syscall.EACCES, syscall.EPERM, syscall.ENXIO:
		return ends{}, reject("no_terminal", "the sandbox has no terminals: %v", err)
	case syscall.EINVAL:
		return ends{}, reject("unknown_user", "user %s cannot have a terminal: %v", p.User.Name, err)
	default:
		return ends{}, errors.New("no terminal: " + err.Error())
	}
	master := os.NewFile(uintptr(outer), "terminal")
	return ends{[4]*os.File{master, master}, []int{inner, inner, inner}}, nil
}

func (t *Table) closeAll(made ends) {
	for _, f := range made.ours {
		_ = f.Close() // fails harmlessly for nil
	}
	t.closeInside(made)
}

func (t *Table) closeInside(made ends) {
	for i, fd := range made.inside {
		if fd != t.Null && (i == 0 || fd != made.inside[i-1]) {
			_ = syscall.Close(fd)
		}
	}
}

func (p *Process) closeFiles() {
	for _, f := range []*os.File{p.stdin, p.out, p.err, p.channel} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// Resize changes the size of the process's terminal.
func (p *Process) Resize(size Size) error {
	if !p.Pty {
		return ErrTerminal
	}
	if !p.Running() || p.job == nil {
		return ErrEnded
	}
	raw, err := p.out.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { _ = linux.Resize(int(fd), size.window()) })
	}
	if err != nil {
		return ErrEnded
	}
	return nil
}
