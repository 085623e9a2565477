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
	drainTime  = 200 * time.Millisecond
	outputSize = 64 << 10 // what a pipe holds
)

var frames = sync.Pool{New: func() any { return new([wire.FrameHead + outputSize]byte) }}

// stream moves one process's bytes over one connection.
type stream struct {
	*Process
	conn *wire.Conn
	feed *feed
}

// Stream serves the upgraded connection until the exit frame has been sent and the host says something else, or leaves.
func (p *Process) Stream(c *wire.Conn) {
	s := &stream{Process: p, conn: c}
	if p.job == nil {
		s.failed()
		return
	}
	if c.Upgrade(wire.Started, map[string]int{"pid": p.PID}) != nil {
		s.lost()
	}
	if p.stdin != nil {
		s.feed = newFeed(p.stdin)
	}
	var pumps sync.WaitGroup
	pumps.Add(2)
	go s.pump(wire.Stdout, p.out, &pumps)
	go s.pump(wire.Stderr, p.err, &pumps)
	listening := make(chan struct{})
	go func() {
		s.listen()
		close(listening)
	}()
	s.wait(&pumps)
	if s.feed != nil {
		s.feed.close()
	}
	c.Downgrade(wire.Exit, p.status)
	<-listening
}

// failed reports a program that could not be executed, as a shell would.
func (s *stream) failed() {
	if s.conn.Upgrade(wire.Started, map[string]int{"pid": 0}) != nil {
		return
	}
	name := s.Name()
	message := name + ": " + s.failure.Error() + "\n"
	if *s.status.ExitCode == 127 {
		message = name + ": command not found\n"
	}
	_ = s.conn.WriteFrame(wire.Stderr, append(make([]byte, wire.FrameHead), message...))
	s.conn.Downgrade(wire.Exit, s.status)
}

// wait returns when the command has exited and its pipes are drained, or a little after the exit.
func (s *stream) wait(pumps *sync.WaitGroup) {
	<-s.job.Exited()
	ended := time.Now()
	if s.timer != nil {
		s.timer.Stop()
	}
	drained := make(chan struct{})
	go func() {
		pumps.Wait()
		close(drained)
	}()
	late := time.NewTimer(drainTime)
	select {
	case <-drained:
	case <-late.C:
		// The pumps take what is in the pipes now and then stop: a child left behind may hold them open for ever.
		_ = s.out.SetReadDeadline(ended)
		_ = s.err.SetReadDeadline(ended)
		<-drained
	}
	late.Stop()
	s.finish(s.conclude(ended))
}

// pump sends a pipe's bytes as frames, as fast as the host takes them. Whatever ends it early, it goes on reading and
// throwing away: a child left behind must not die of SIGPIPE.
func (s *stream) pump(kind byte, pipe *os.File, done *sync.WaitGroup) {
	err := s.forward(kind, pipe)
	done.Done()
	if err != io.EOF {
		discard(pipe)
	}
	_ = pipe.Close()
}

func (s *stream) forward(kind byte, pipe *os.File) error {
	raw, err := pipe.SyscallConn()
	for err == nil {
		_, err = s.move(kind, raw, outputSize)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = pipe.SetReadDeadline(time.Time{})
		return s.rest(kind, raw)
	}
	return err
}

// rest sends what the pipe holds at this moment and no more.
func (s *stream) rest(kind byte, raw syscall.RawConn) error {
	left := 0
	err := raw.Control(func(fd uintptr) { left = linux.Pending(int(fd)) })
	for left > 0 && err == nil {
		n := 0
		n, err = s.move(kind, raw, left)
		left -= n
	}
	if err == nil {
		err = os.ErrDeadlineExceeded
	}
	return err
}

// move waits for bytes and sends one frame of them. It takes a buffer only once there are some: a command that is silent
// costs none.
func (s *stream) move(kind byte, raw syscall.RawConn, most int) (n int, err error) {
	var buffer *[wire.FrameHead + outputSize]byte
	var readErr error
	err = raw.Read(func(fd uintptr) bool {
		buffer = frames.Get().(*[wire.FrameHead + outputSize]byte)
		n, readErr = syscall.Read(int(fd), buffer[wire.FrameHead:wire.FrameHead+min(most, outputSize)])
		if readErr == syscall.EAGAIN {
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
	case readErr != nil:
		return 0, readErr
	case n == 0:
		return 0, io.EOF
	}
	if err := s.conn.WriteFrame(kind, buffer[:wire.FrameHead+n]); err != nil {
		s.lost()
		return n, err
	}
	return n, nil
}

func discard(pipe *os.File) {
	var waste [4096]byte
	for {
		if _, err := pipe.Read(waste[:]); err != nil {
			return
		}
	}
}

// lost is what happens when the host is gone: unless it said detach, the command goes too.
func (s *stream) lost() {
	if !s.Request.Detach && s.Running() {
		s.Kill()
	}
}

// listen obeys the host's frames until the connection ends.
func (s *stream) listen() {
	for {
		kind, body, err := s.conn.ReadFrame()
		if err == wire.ErrDowngraded {
			return
		}
		if err != nil {
			s.conn.End()
			s.lost()
			return
		}
		switch kind {
		case wire.Stdin:
			if s.feed != nil && !s.feed.put(body, s.conn.HungUp) {
				s.lost()
				return
			}
		case wire.StdinEOF:
			if s.feed != nil {
				s.feed.eof()
			}
		case wire.Signal:
			if signal, ok := linux.Signal(string(body)); ok {
				_ = s.Signal(signal)
			}
		}
	}
}
