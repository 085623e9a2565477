package process

import (
	"sync"
	"sync/atomic"
	"syscall"

	"skerry/keeper/internal/wire"
)

const (
	smallPiece = 64 << 10  // what a pipe holds
	largePiece = 256 << 10 // a quarter of what it may hold
	largePipe  = 1 << 20
	manyFull   = 4  // pieces in a row that were full: this one has much to say
	largeMost  = 16 // pipes of that size at one time: the kernel counts them, and makes small ones past a bound
)

var largePipes atomic.Int32

// sizes is how much a pump takes at a time: little, until its program has shown that it prints much.
type sizes struct {
	full  int
	large bool
}

func (s *sizes) most() int {
	if s.large {
		return largePiece
	}
	return smallPiece
}

// saw is told how much came, and says whether that makes it large.
func (s *sizes) saw(n int, raw syscall.RawConn) bool {
	if s.large {
		return false
	}
	if s.full++; n < smallPiece {
		s.full = 0
	}
	if s.full < manyFull {
		return false
	}
	s.full = 0
	if largePipes.Add(1) > largeMost {
		largePipes.Add(-1)
		return false
	}
	s.large = true
	_ = raw.Control(func(fd uintptr) {
		_, _, _ = syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_SETPIPE_SZ, largePipe)
	})
	return true
}

// reset gives the large pipe up, and says whether there was one.
func (s *sizes) reset() bool {
	if s.large {
		s.large = false
		largePipes.Add(-1)
		return true
	}
	return false
}

var (
	small = sync.Pool{New: func() any { return new([wire.FrameHead + smallPiece]byte) }}
	large = sync.Pool{New: func() any { return new([wire.FrameHead + largePiece]byte) }}
)

// lent is a buffer for one frame.
type lent struct {
	frame []byte
	whole any
}

func lend(most int) lent {
	if most > smallPiece {
		b := large.Get().(*[wire.FrameHead + largePiece]byte)
		return lent{b[:wire.FrameHead+min(most, largePiece)], b}
	}
	b := small.Get().(*[wire.FrameHead + smallPiece]byte)
	return lent{b[:wire.FrameHead+most], b}
}

func (l lent) back() {
	switch b := l.whole.(type) {
	case *[wire.FrameHead + largePiece]byte:
		large.Put(b)
	case *[wire.FrameHead + smallPiece]byte:
		small.Put(b)
	}
}
