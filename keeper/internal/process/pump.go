package process

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"skerry/keeper/internal/journal"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/wire"
)

const (
	drainTime    = 200 * time.Millisecond
	terminalSize = 64 << 10 // more than a terminal does
)

// prepare makes the pumps.
func (p *Process) prepare() {
	if p.Channel {
		p.shut = make(chan struct{})
	}
	pipes := []*os.File{p.channel, p.out, p.err}
	for i, kind := range []byte{wire.Channel, wire.Stdout, wire.Stderr} {
		if pipes[i] != nil {
			p.pumps = append(p.pumps, &pump{Process: p, kind: kind, pipe: pipes[i]})
		}
	}
}

// attend moves a command's output to its journal, and waits for its end.
func (p *Process) attend() {
	var pumps sync.WaitGroup
	for _, one := range p.pumps {
		pumps.Add(1)
		go one.run(&pumps)
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
		for _, one := range p.pumps {
			_ = one.pipe.SetReadDeadline(ended)
		}
		<-drained
	}
}

// pump writes a pipe's bytes to the journal.
type pump struct {
	*Process
	kind byte
	pipe *os.File
	size sizes
	mu   sync.Mutex // held from a read until its bytes are in the journal; a channel's is taken before the others
}

// run returns at the pipe's end. Whatever ends the work early, it goes on reading and throwing away: a child left behind must
// not die of SIGPIPE.
func (p *pump) run(done *sync.WaitGroup) {
	err := p.keep()
	if p.size.reset() {
		p.journal.Cool()
	}
	done.Done()
	if err != io.EOF {
		discard(p.pipe)
	}
	_ = p.pipe.Close()
	if p.kind == wire.Channel {
		p.tellShut()
	}
}

func (p *pump) keep() error {
	raw, err := p.pipe.SyscallConn()
	for err == nil {
		n := 0
		n, err = p.move(raw.Read, p.size.most(), p.size.large)
		if n > 0 && !p.Pty && p.kind != wire.Channel && p.size.saw(n, raw) {
			p.journal.Heat()
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

// rest takes what there is at this moment and no more.
func (p *pump) rest(raw syscall.RawConn) error {
	if p.Pty { // how much a terminal holds nobody says
		return p.take(raw, terminalSize)
	}
	return p.take(raw, pending(raw))
}

func pending(raw syscall.RawConn) (n int) {
	_ = raw.Control(func(fd uintptr) { n = linux.Pending(int(fd)) })
	return n
}

// settle has everything in the journal that was in the pipe when it was called.
func (p *pump) settle() {
	raw, err := p.pipe.SyscallConn()
	if err != nil {
		return
	}
	p.mu.Lock() // what was read before is in the journal now
	left := pending(raw)
	p.mu.Unlock()
	_ = p.take(raw, left)
}

// settle does so for all that a program writes to.
func (p *Process) settle() {
	for _, one := range p.pumps {
		one.settle()
	}
}

// take keeps so many bytes, or those that there are.
func (p *pump) take(raw syscall.RawConn, left int) error {
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

// move takes bytes, as read gets at them, and keeps one frame of them. It takes a buffer only once there are some: a
// command that is silent costs none. Straight: into the journal's own files, if it can.
func (p *pump) move(read func(func(uintptr) bool) error, most int, straight bool) (n int, err error) {
	p.journal.Await()
	most = min(most, p.journal.Most())
	var buffer lent
	var readErr error
	err = read(func(fd uintptr) bool {
		p.mu.Lock()
		readErr = journal.ErrCold
		if straight {
			n, readErr = p.journal.Pull(p.kind, int(fd), most)
		}
		if readErr == journal.ErrCold {
			buffer = lend(most)
			n, readErr = syscall.Read(int(fd), buffer.frame[wire.FrameHead:])
		}
		if readErr == syscall.EAGAIN || readErr == syscall.EIO && p.unfinished() {
			p.mu.Unlock()
			buffer.back()
			buffer = lent{}
			return false
		}
		return true
	})
	if err != nil {
		return 0, err
	}
	defer p.mu.Unlock()
	defer buffer.back()
	switch {
	case readErr == syscall.EINTR:
		return 0, nil
	case readErr == syscall.EIO && p.Pty, readErr == syscall.ECONNRESET: // a channel closed with bytes unread
		return 0, io.EOF
	case readErr != nil:
		return 0, readErr
	case n == 0:
		return 0, io.EOF
	}
	if buffer.frame != nil { // else it is there already
		p.before()
		p.journal.Append(p.kind, buffer.frame[:wire.FrameHead+n])
	}
	return n, nil
}

// before has what was printed earlier than a message in the journal earlier.
func (p *pump) before() {
	if p.kind != wire.Channel {
		return
	}
	for _, one := range p.pumps {
		if one.kind != wire.Channel {
			one.settle()
		}
	}
}

// tellShut says that the program has closed its channel, unless that was its end.
func (p *Process) tellShut() {
	late := time.NewTimer(drainTime)
	defer late.Stop()
	select {
	case <-p.job.Exited():
	case <-late.C:
		close(p.shut)
	}
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
