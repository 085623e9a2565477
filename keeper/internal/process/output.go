package process

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"skerry/keeper/internal/httpwire"
	"skerry/keeper/internal/journal"
	"skerry/keeper/internal/linux"
)

const (
	drainTime    = 200 * time.Millisecond
	terminalSize = 64 << 10 // more than a terminal holds
)

func (p *Process) makePumps() {
	if p.Channel {
		p.channelClosed = make(chan struct{})
	}
	pipes := []*os.File{p.channel, p.out, p.err}
	for i, kind := range []byte{httpwire.Channel, httpwire.Stdout, httpwire.Stderr} {
		if pipes[i] != nil {
			p.outputs = append(p.outputs, &outputPump{Process: p, kind: kind, pipe: pipes[i]})
		}
	}
}

// supervise moves a command's output to its journal and waits for its exit.
func (p *Process) supervise() {
	var outputs sync.WaitGroup
	for _, one := range p.outputs {
		outputs.Add(1)
		go one.run(&outputs)
	}
	<-p.job.Exited()
	ended := time.Now()
	if p.timer != nil {
		p.timer.Stop()
	}
	if p.Pty { // its pump may have seen EIO already and waited for a reopen
		_ = p.out.SetReadDeadline(ended)
	}
	p.drain(&outputs, ended)
	p.finish(p.exitStatus(ended))
}

// drain returns when the pipes are empty and closed, or shortly after the exit with the bytes that they held then: a
// leftover child may hold them open for ever.
func (p *Process) drain(outputs *sync.WaitGroup, ended time.Time) {
	drained := make(chan struct{})
	go func() {
		outputs.Wait()
		close(drained)
	}()
	late := time.NewTimer(drainTime)
	defer late.Stop()
	select {
	case <-drained:
	case <-late.C:
		p.late.Store(true)
		for _, one := range p.outputs {
			_ = one.pipe.SetReadDeadline(ended)
		}
		<-drained
	}
}

// outputPump moves the bytes of one pipe to the journal.
type outputPump struct {
	*Process
	kind byte
	pipe *os.File
	size readSize
	mu   sync.Mutex // held from a read until its bytes are in the journal; the channel's is taken before the others
}

// run returns at the end of the pipe. If recording ends early, it keeps reading and discards, because a leftover child
// must not die of SIGPIPE.
func (p *outputPump) run(done *sync.WaitGroup) {
	err := p.keep()
	if p.size.reset() {
		p.journal.StopMapping()
	}
	done.Done()
	if err != io.EOF {
		discard(p.pipe)
	}
	_ = p.pipe.Close()
	if p.kind == httpwire.Channel {
		p.notifyChannelClosed()
	}
}

// keep records output until the pipe ends, or until the deadline after the exit.
func (p *outputPump) keep() error {
	raw, err := p.pipe.SyscallConn()
	for err == nil {
		n := 0
		n, err = p.move(raw.Read, p.size.limit(), p.size.large)
		if n > 0 && !p.Pty && p.kind != httpwire.Channel && p.size.observe(n, raw) {
			p.journal.StartMapping()
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = p.pipe.SetReadDeadline(time.Time{})
			if p.late.Load() {
				return p.rest(raw)
			}
		}
	}
	return err
}

// rest takes the bytes that are in the pipe at this moment.
func (p *outputPump) rest(raw syscall.RawConn) error {
	if p.Pty { // the kernel does not report how much a terminal holds
		return p.take(raw, terminalSize)
	}
	return p.take(raw, pending(raw))
}

func pending(raw syscall.RawConn) (n int) {
	_ = raw.Control(func(fd uintptr) { n = linux.Pending(int(fd)) })
	return n
}

// settle returns when the journal has everything that was in the pipe at the time of the call.
func (p *outputPump) settle() {
	raw, err := p.pipe.SyscallConn()
	if err != nil {
		return
	}
	p.mu.Lock() // earlier reads are now in the journal
	left := pending(raw)
	p.mu.Unlock()
	_ = p.take(raw, left)
}

// settle settles all outputs of the program.
func (p *Process) settle() {
	for _, one := range p.outputs {
		one.settle()
	}
}

// take records `left` bytes, or fewer if the pipe has fewer.
func (p *outputPump) take(raw syscall.RawConn, left int) error {
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
		n, err := p.move(now, left, false)
		if err != nil {
			return err
		}
		left -= n
	}
	return os.ErrDeadlineExceeded
}

// move reads once and records one frame. It borrows a buffer only when there are bytes, so a silent command costs none.
// With straight set, it reads directly into the journal's mapped file if there is one.
func (p *outputPump) move(read func(func(uintptr) bool) error, limit int, straight bool) (n int, err error) {
	p.journal.AwaitCapacity()
	limit = min(limit, p.journal.MaxPayload())
	var buffer frameBuffer
	var readErr error
	err = read(func(fd uintptr) bool {
		p.mu.Lock()
		readErr = journal.ErrNotMapped
		if straight {
			n, readErr = p.journal.Pull(p.kind, int(fd), limit)
		}
		if readErr == journal.ErrNotMapped {
			buffer = borrowBuffer(limit)
			n, readErr = syscall.Read(int(fd), buffer.frame[httpwire.FrameHeader:])
		}
		if readErr == syscall.EAGAIN || readErr == syscall.EIO && p.mayReopenTerminal() {
			p.mu.Unlock()
			buffer.release()
			buffer = frameBuffer{}
			return false
		}
		return true
	})
	if err != nil {
		return 0, err
	}
	defer p.mu.Unlock()
	defer buffer.release()
	switch {
	case readErr == syscall.EINTR:
		return 0, nil
	case readErr == syscall.EIO && p.Pty, readErr == syscall.ECONNRESET: // ECONNRESET: a channel that was closed with unread bytes
		return 0, io.EOF
	case readErr != nil:
		return 0, readErr
	case n == 0:
		return 0, io.EOF
	}
	if buffer.frame != nil { // otherwise the journal has the bytes already
		p.before()
		p.journal.Append(p.kind, buffer.frame[:httpwire.FrameHeader+n])
	}
	return n, nil
}

// before records all output that was printed before a message of the channel.
func (p *outputPump) before() {
	if p.kind != httpwire.Channel {
		return
	}
	for _, one := range p.outputs {
		if one.kind != httpwire.Channel {
			one.settle()
		}
	}
}

// notifyChannelClosed reports that the program has closed its channel, unless the program has ended.
func (p *Process) notifyChannelClosed() {
	late := time.NewTimer(drainTime)
	defer late.Stop()
	select {
	case <-p.job.Exited():
	case <-late.C:
		close(p.channelClosed)
	}
}

// mayReopenTerminal reports whether an EIO is not the end of a terminal: no process has it open now, but the command
// lives and may open /dev/tty again. After the command's exit it is the end, because the kernel hangs up a terminal
// when its session leader exits.
func (p *Process) mayReopenTerminal() bool {
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
