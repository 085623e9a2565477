package process

import (
	"errors"
	"os"
	"sync"
	"time"

	"skerry/keeper/internal/linux"
)

// Errors of writing to a command's stdin.
var (
	ErrStdin = errors.New("the stdin is closed")
	ErrEnded = errors.New("the process has ended")
	errLeft  = errors.New("the host hung up")
)

// feed writes stdin in its own goroutine, so that signals pass a program that does not read. Its queue is bounded: the
// host waits once the pipe and the queue are full.
type feed struct {
	pipe  *os.File
	tty   bool // its end is a character, and more may follow
	queue chan input
	ended chan struct{} // the process is over
	still chan struct{} // nothing is written any more
	once  sync.Once
}

// input is bytes for the program, or (nil) their end. done, if there is one, has room for the answer.
type input struct {
	data []byte
	done chan error
}

const (
	feedSlots = 4
	feedCheck = 100 * time.Millisecond
)

func newFeed(pipe *os.File, tty bool) *feed {
	f := &feed{pipe: pipe, tty: tty, queue: make(chan input, feedSlots), ended: make(chan struct{}), still: make(chan struct{})}
	go f.run()
	return f
}

func (f *feed) run() {
	defer close(f.still)
	var err error
	for {
		select {
		case in := <-f.queue:
			err = f.write(in, err)
		case <-f.ended:
			return
		}
	}
}

// write hands one input on; err is what stopped an earlier one: the rest goes nowhere then.
func (f *feed) write(in input, err error) error {
	switch {
	case err != nil:
	case in.data != nil:
		_, err = f.pipe.Write(in.data)
	case f.tty:
		err = f.writeEOF()
	default:
		_ = f.pipe.Close()
	}
	if in.done != nil {
		if err != nil {
			in.done <- ErrStdin
		}
		close(in.done)
	}
	if in.data == nil && !f.tty {
		return ErrStdin
	}
	return err
}

// writeEOF types what ends the input at a terminal.
func (f *feed) writeEOF() error {
	raw, err := f.pipe.SyscallConn()
	if err != nil {
		return err
	}
	var character byte
	some := false
	err = raw.Control(func(fd uintptr) { character, some = linux.EOFCharacter(int(fd)) })
	if err == nil && some {
		_, err = f.pipe.Write([]byte{character})
	}
	return err
}

// put queues input, unless the host hangs up before there is room.
func (f *feed) put(in input, hungUp func() bool) error {
	for {
		select {
		case f.queue <- in:
			return nil
		case <-f.ended:
			return ErrEnded
		case <-time.After(feedCheck):
			if hungUp() {
				return errLeft
			}
		}
	}
}

// deliver queues input and waits until the program's pipe has it.
func (f *feed) deliver(data []byte, hungUp func() bool) error {
	in := input{data, make(chan error, 1)}
	if err := f.put(in, hungUp); err != nil {
		return err
	}
	for {
		select {
		case err := <-in.done:
			return err
		case <-f.still:
			select {
			case err := <-in.done:
				return err
			default:
				return ErrEnded
			}
		case <-time.After(feedCheck):
			if hungUp() {
				return errLeft
			}
		}
	}
}

// close ends a write that blocks, too.
func (f *feed) close() {
	f.once.Do(func() {
		close(f.ended)
		_ = f.pipe.Close()
	})
}

// Write hands bytes to the command's stdin, and waits until its pipe has them.
func (p *Process) Write(data []byte, hungUp func() bool) error {
	switch {
	case !p.Running():
		return ErrEnded
	case p.feed == nil:
		return ErrStdin
	case len(data) == 0:
		return nil
	}
	return p.deliver(data, hungUp)
}

// CloseStdin ends the command's stdin.
func (p *Process) CloseStdin(hungUp func() bool) error {
	if err := p.Write(nil, hungUp); err != nil {
		return err
	}
	return p.deliver(nil, hungUp)
}

// deliver tells a program that closed its stdin from one that has just ended, which its pipe says first.
func (p *Process) deliver(data []byte, hungUp func() bool) error {
	err := p.feed.deliver(data, hungUp)
	if err == ErrStdin {
		select {
		case <-p.ended:
			return ErrEnded
		case <-time.After(drainTime):
		}
	}
	return err
}
