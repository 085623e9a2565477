package process

import (
	"sync"
	"sync/atomic"
	"syscall"

	"skerry/keeper/internal/httpwire"
)

const (
	smallPiece    = 64 << 10  // capacity of an ordinary pipe
	largePiece    = 256 << 10 // a quarter of a large pipe
	largePipe     = 1 << 20
	fullReads     = 4  // full reads in a row that mark a program with much output
	maxLargePipes = 16 // the kernel counts large pipes per user and makes small ones beyond a bound
)

var largePipes atomic.Int32

// readSize decides how much a pump reads at a time: little, until the program has shown that it prints much.
type readSize struct {
	full  int
	large bool
}

func (s *readSize) limit() int {
	if s.large {
		return largePiece
	}
	return smallPiece
}

// observe records the size of a read and reports whether the pipe has become large.
func (s *readSize) observe(n int, raw syscall.RawConn) bool {
	if s.large {
		return false
	}
	if s.full++; n < smallPiece {
		s.full = 0
	}
	if s.full < fullReads {
		return false
	}
	s.full = 0
	if largePipes.Add(1) > maxLargePipes {
		largePipes.Add(-1)
		return false
	}
	s.large = true
	_ = raw.Control(func(fd uintptr) {
		_, _, _ = syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_SETPIPE_SZ, largePipe)
	})
	return true
}

// reset gives up the large pipe and reports whether there was one.
func (s *readSize) reset() bool {
	if s.large {
		s.large = false
		largePipes.Add(-1)
		return true
	}
	return false
}

var (
	small = sync.Pool{New: func() any { return new([httpwire.FrameHeader + smallPiece]byte) }}
	large = sync.Pool{New: func() any { return new([httpwire.FrameHeader + largePiece]byte) }}
)

// frameBuffer is a buffer for one frame.
type frameBuffer struct {
	frame []byte
	whole any
}

func borrowBuffer(limit int) frameBuffer {
	if limit > smallPiece {
		b := large.Get().(*[httpwire.FrameHeader + largePiece]byte)
		return frameBuffer{b[:httpwire.FrameHeader+min(limit, largePiece)], b}
	}
	b := small.Get().(*[httpwire.FrameHeader + smallPiece]byte)
	return frameBuffer{b[:httpwire.FrameHeader+limit], b}
}

func (b frameBuffer) release() {
	switch whole := b.whole.(type) {
	case *[httpwire.FrameHeader + largePiece]byte:
		large.Put(whole)
	case *[httpwire.FrameHeader + smallPiece]byte:
		small.Put(whole)
	}
}
