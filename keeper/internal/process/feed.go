package process

import (
	"os"
	"sync"
	"time"
)

// feed writes stdin in its own goroutine, so that signals pass a program that does not read. Its queue is bounded: the
// host waits once the pipe and the queue are full.
type feed struct {
	queue  chan []byte
	closed chan struct{}
	once   sync.Once
	eofs   sync.Once
}

const (
	feedSlots = 4
	feedCheck = 100 * time.Millisecond
)

func newFeed(pipe *os.File) *feed {
	f := &feed{queue: make(chan []byte, feedSlots), closed: make(chan struct{})}
	go f.run(pipe)
	go func() { // a write that blocks ends with the process
		<-f.closed
		_ = pipe.Close()
	}()
	return f
}

func (f *feed) run(pipe *os.File) {
	broken := false
	for {
		select {
		case data, open := <-f.queue:
			if !open {
				_ = pipe.Close()
				return
			}
			if !broken {
				_, err := pipe.Write(data)
				broken = err != nil // the program closed its stdin: the rest goes nowhere
			}
		case <-f.closed:
			return
		}
	}
}

// put queues data; false if the host hung up meanwhile.
func (f *feed) put(data []byte, hungUp func() bool) bool {
	for {
		select {
		case f.queue <- data:
			return true
		case <-f.closed:
			return true
		case <-time.After(feedCheck):
			if hungUp() {
				return false
			}
		}
	}
}

func (f *feed) eof() { f.eofs.Do(func() { close(f.queue) }) }

func (f *feed) close() { f.once.Do(func() { close(f.closed) }) }
