package process

import (
	"errors"
	"io"
	"math"
	"os"
	"sync"
	"time"

	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/wire"
)

// Errors of a turn.
var (
	ErrChannel = errors.New("the process has no channel")
	ErrBusy    = errors.New("another turn of the process is under way")
)

const (
	leaveWait = 5 * time.Second // for a turn whose host has hung up
	pourPiece = 32 << 10
)

// turn is one exchange with a program over its channel: bytes for it, and all that it prints and says meanwhile. The program
// waits for a host that reads slowly. If the host leaves, the program goes on, and waits for nobody.
type turn struct {
	stream
	meter meter
	once  sync.Once
	halt  chan struct{} // closed when the host has left, or said that the turn is over
	free  chan struct{} // closed when another turn may begin
	over  bool          // these are valid once halt is closed
	until int64         // where the output of a turn that is over ends
	used  used
}

// turns sees to it that there is one at a time.
type turns struct {
	mu  sync.Mutex
	now *turn
}

// enter makes it the process's turn. One whose host has hung up is about to end.
func (ts *turns) enter(t *turn) bool {
	late := time.NewTimer(leaveWait)
	defer late.Stop()
	for {
		ts.mu.Lock()
		now := ts.now
		if now == nil {
			ts.now = t
		}
		ts.mu.Unlock()
		if now == nil {
			return true
		}
		select {
		case <-now.free:
			continue
		default:
		}
		if !now.conn.HungUp() {
			return false
		}
		select {
		case <-now.free:
		case <-late.C:
			return false
		}
	}
}

func (ts *turns) leave() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	close(ts.now.free)
	ts.now = nil
}

// Turn serves an upgraded connection with a turn, whose first bytes for the program are the request's body, of that length.
func (p *Process) Turn(c *wire.Conn, body io.Reader, length int64) error {
	switch {
	case !p.Channel:
		return ErrChannel
	case !p.Running() || p.channel == nil:
		return ErrEnded
	}
	t := &turn{stream: stream{Process: p, conn: c, left: math.MaxInt64}, halt: make(chan struct{}), free: make(chan struct{})}
	if !p.turns.enter(t) {
		return ErrBusy
	}
	p.settle()
	t.reader = p.journal.PaceNow()
	t.meter = p.measure()
	defer t.meter.gauge.stop()
	t.serve(body, length)
	return nil
}

type begun struct {
	PID    int    `json:"pid"`
	Cgroup uint64 `json:"cgroup"`
	Offset int64  `json:"offset"`
	Clock  int64  `json:"clock"`
}

func (t *turn) serve(body io.Reader, length int64) {
	t.table.showing.Add(1)
	shown := sync.OnceFunc(func() { t.table.showing.Add(-1) })
	defer shown()
	var kind byte
	var last any
	listening := make(chan struct{})
	err := t.conn.Upgrade(wire.Started, begun{t.PID, t.Cgroup(), t.reader.Offset(), linux.CoarseClock()})
	if err == nil {
		go func() {
			t.listen(body, length)
			close(listening)
		}()
		kind, last = t.send()
	} else {
		close(listening)
	}
	t.reader.Close()
	if last == nil {
		t.conn.End()
		<-listening // nothing of this turn is written to the channel any more
		t.turns.leave()
		return
	}
	t.turns.leave() // first: the host may begin another as soon as it knows
	t.conn.Downgrade(kind, last)
	shown()
	<-listening
}

// send shows what the turn brings until it is over, and returns the last frame; nil: the host is gone.
func (t *turn) send() (kind byte, last any) {
	shut := t.shut
	for {
		halted := false
		select {
		case <-t.halt:
			if !t.over {
				return 0, nil
			}
			if halted, t.left = true, t.until-t.reader.Offset(); t.left <= 0 {
				return wire.Turned, t.used
			}
		default:
		}
		more, ended := t.reader.More()
		if !more && !ended && !halted {
			more, ended = t.reader.Wait(t.halt, shut)
		}
		var err error
		switch {
		case ended:
			return wire.Exit, t.meter.exit(t.Process)
		case more:
			err = t.piece()
		case !halted && isClosed(shut):
			shut = nil
			err = t.conn.WriteJSON(wire.Shut, struct{}{})
		}
		if err != nil {
			return 0, nil
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// listen hands the body and the host's frames on until the connection ends, or speaks HTTP again.
func (t *turn) listen(body io.Reader, length int64) {
	err := t.pour(body, length)
	for err == nil {
		var kind byte
		var data []byte
		if kind, data, err = t.conn.ReadFrame(); err == nil {
			err = t.obey(kind, data)
		}
	}
	if err != wire.ErrDowngraded {
		t.conn.End()
		t.once.Do(func() { close(t.halt) })
	}
}

func (t *turn) pour(body io.Reader, length int64) error {
	if length == 0 {
		return nil
	}
	buffer := make([]byte, min(length, pourPiece))
	for {
		n, err := body.Read(buffer)
		if n > 0 {
			if err := t.put(buffer[:n]); err != nil {
				return err
			}
		}
		switch err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}

// put writes to the channel. What nobody reads any more goes nowhere; the host's leaving is the only error.
func (t *turn) put(data []byte) error {
	for len(data) > 0 {
		_ = t.channel.SetWriteDeadline(time.Now().Add(feedCheck))
		n, err := t.channel.Write(data)
		data = data[n:]
		switch {
		case err == nil:
		case !errors.Is(err, os.ErrDeadlineExceeded) || !t.Running():
			return nil
		case t.conn.HungUp():
			return errLeft
		}
	}
	return nil
}

func (t *turn) obey(kind byte, data []byte) error {
	switch {
	case isClosed(t.halt): // it is over
	case kind == wire.Stdin:
		return t.put(data)
	case kind == wire.Signal:
		return t.stream.obey(kind, data)
	case kind == wire.Over:
		t.once.Do(func() {
			t.settle()
			_, t.until = t.Kept()
			t.over, t.used = true, t.meter.read(t.Process)
			close(t.halt)
		})
	}
	return nil
}
