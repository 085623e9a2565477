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
	ErrStdin  = errors.New("stdin is closed")
	ErrEnded  = errors.New("the process has ended")
	errHungUp = errors.New("the host hung up")
)

// stdinWriter writes stdin in a goroutine, so that signals reach a program that does not read. Its queue is bounded:
// the host waits once the pipe and the queue are full.
type stdinWriter struct {
	pipe  *os.File
	tty   bool // its end is a character, and more input may follow
	queue chan input
	ended chan struct{} // closed when the process has ended
	still chan struct{} // closed when the goroutine has ended
	once  sync.Once
}

// input is bytes for the program, or nil for their end. done, if set, is buffered.
type input struct {
	data []byte
	done chan error
}

const (
	stdinSlots  = 4
	hangUpCheck = 100 * time.Millisecond
)

func newStdinWriter(pipe *os.File, tty bool) *stdinWriter {
	f := &stdinWriter{pipe: pipe, tty: tty, queue: make(chan input, stdinSlots), ended: make(chan struct{}), still: make(chan struct{})}
	go f.run()
	return f
}

func (w *stdinWriter) run() {
	defer close(w.still)
	var err error
	for {
		select {
		case in := <-w.queue:
			err = w.write(in, err)
		case <-w.ended:
			return
		}
	}
}

// write passes on one input. err is the error of an earlier input; the rest is then dropped.
func (w *stdinWriter) write(in input, err error) error {
	switch {
	case err != nil:
	case in.data != nil:
		_, err = w.pipe.Write(in.data)
	case w.tty:
		err = w.writeEOF()
	default:
		_ = w.pipe.Close()
	}
	if in.done != nil {
		if err != nil {
			in.done <- ErrStdin
		}
		close(in.done)
	}
	if in.data == nil && !w.tty {
		return ErrStdin
	}
	return err
}

// writeEOF types the terminal's end-of-file character.
func (w *stdinWriter) writeEOF() error {
	raw, err := w.pipe.SyscallConn()
	if err != nil {
		return err
	}
	var character byte
	some := false
	err = raw.Control(func(fd uintptr) { character, some = linux.EOFCharacter(int(fd)) })
	if err == nil && some {
		_, err = w.pipe.Write([]byte{character})
	}
	return err
}

// put queues input, unless the host hangs up before the queue has capacity.
func (w *stdinWriter) put(in input, hungUp func() bool) error {
	for {
		select {
		case w.queue <- in:
			return nil
		case <-w.ended:
			return ErrEnded
		case <-time.After(hangUpCheck):
			if hungUp() {
				return errHungUp
			}
		}
	}
}

// deliver queues input and waits until the program's pipe has it.
func (w *stdinWriter) deliver(data []byte, hungUp func() bool) error {
	in := input{data, make(chan error, 1)}
	if err := w.put(in, hungUp); err != nil {
		return err
	}
	for {
		select {
		case err := <-in.done:
			return err
		case <-w.still:
			select {
			case err := <-in.done:
				return err
			default:
				return ErrEnded
			}
		case <-time.After(hangUpCheck):
			if hungUp() {
				return errHungUp
			}
		}
	}
}

// close also ends a blocked write.
func (w *stdinWriter) close() {
	w.once.Do(func() {
		close(w.ended)
		_ = w.pipe.Close()
	})
}

// Write passes bytes to the command's stdin and waits until its pipe has them.
func (p *Process) Write(data []byte, hungUp func() bool) error {
	switch {
	case !p.Running():
		return ErrEnded
	case p.stdinWriter == nil:
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

// deliver distinguishes a program that closed its stdin from one that has just ended, since the pipe breaks before the
// exit is known.
func (p *Process) deliver(data []byte, hungUp func() bool) error {
	err := p.stdinWriter.deliver(data, hungUp)
	if err == ErrStdin {
		select {
		case <-p.ended:
			return ErrEnded
		case <-time.After(drainTime):
		}
	}
	return err
}
