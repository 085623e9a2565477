package process

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/wire"
)

const (
	drainTime    = 200 * time.Millisecond
	outputSize   = 64 << 10 // what a pipe holds
	terminalSize = 64 << 10 // more than a terminal does
)

var frames = sync.Pool{New: func() any { return new([wire.FrameHead + outputSize]byte) }}

// attend moves a command's output to its journal, and waits for its end.
func (p *Process) attend() {
	var pumps sync.WaitGroup
	for kind, pipe := range map[byte]*os.File{wire.Stdout: p.out, wire.Stderr: p.err} {
		if pipe != nil {
			pumps.Add(1)
			go p.pump(kind, pipe, &pumps)
		}
	}
	<-p.job.Exited()
	ended := time.Now()
	if p.timer != nil {
		p.timer.Stop()
	}
	if p.Pty { // its pump may have met the end already, and did not believe it
		_ = p.out.SetReadDeadline(ended)
	}
	p.drain(&pumps, ended)
	p.finish(p.conclude(ended))
}

// drain returns when the pipes are empty and closed, or a little after the exit with what they held then: a child left
// behind may hold them open for ever.
func (p *Process) drain(pumps *sync.WaitGroup, ended time.Time) {
	drained := make(chan struct{})
	go func() {
		pumps.Wait()
		close(drained)
	}()
	late := time.NewTimer(drainTime)
	defer late.Stop()
	select {
	case <-drained:
	case <-late.C:
		p.late.Store(true)
		_ = p.out.SetReadDeadline(ended)
		if p.err != nil {
			_ = p.err.SetReadDeadline(ended)
		}
		<-drained
	}
}

// pump writes a pipe's bytes to the journal. Whatever ends it early, it goes on reading and throwing away: a child left
// behind must not die of SIGPIPE.
func (p *Process) pump(kind byte, pipe *os.File, done *sync.WaitGroup) {
	err := p.keep(kind, pipe)
	done.Done()
	if err != io.EOF {
		discard(pipe)
	}
	_ = pipe.Close()
}

func (p *Process) keep(kind byte, pipe *os.File) error {
	raw, err := pipe.SyscallConn()
	for err == nil {
		_, err = p.move(kind, raw.Read, outputSize)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = pipe.SetReadDeadline(time.Time{})
			if p.late.Load() {
				return p.rest(kind, raw)
			}
		}
	}
	return err
}

// rest takes what there is at this moment and no more.
func (p *Process) rest(kind byte, raw syscall.RawConn) error {
	left := terminalSize // how much a terminal holds nobody says
	if !p.Pty {
		_ = raw.Control(func(fd uintptr) { left = linux.Pending(int(fd)) })
	}
	now := func(f func(uintptr) bool) error {
		some := true
		if err := raw.Control(func(fd uintptr) { some = f(fd) }); err != nil {
			return err
		}
		if !some {
			return os.ErrDeadlineExceeded
		}
		return nil
	}
	for left > 0 {
		n, err := p.move(kind, now, left)
		if err != nil {
			return err
		}
		left -= n
	}
	return os.ErrDeadlineExceeded
}

// move takes bytes, as read gets at them, and keeps one frame of them. It takes a buffer only once there are some: a
// command that is silent costs none.
func (p *Process) move(kind byte, read func(func(uintptr) bool) error, most int) (n int, err error) {
	p.journal.Await()
	most = min(most, outputSize, p.journal.Most())
	var buffer *[wire.FrameHead + outputSize]byte
	var readErr error
	err = read(func(fd uintptr) bool {
		buffer = frames.Get().(*[wire.FrameHead + outputSize]byte)
		n, readErr = syscall.Read(int(fd), buffer[wire.FrameHead:wire.FrameHead+most])
		if readErr == syscall.EAGAIN || readErr == syscall.EIO && p.unfinished() {
			frames.Put(buffer)
			return false
		}
		return true
	})
	if err != nil {
		return 0, err
	}
	defer frames.Put(buffer)
	switch {
	case readErr == syscall.EINTR:
		return 0, nil
	case readErr == syscall.EIO && p.Pty:
		return 0, io.EOF
	case readErr != nil:
		return 0, readErr
	case n == 0:
		return 0, io.EOF
	}
	p.journal.Append(kind, buffer[:wire.FrameHead+n])
	return n, nil
}

// unfinished: nobody has a terminal open just now, but its owner lives and may open it again.
func (p *Process) unfinished() bool {
	select {
	case <-p.job.Exited():
		return false
	default:
		return p.Pty
	}
}

func discard(pipe *os.File) {
	var waste [4096]byte
	for {
		if _, err := pipe.Read(waste[:]); err != nil {
			return
		}
	}
}
