package process

import (
	"errors"
	"io"
	"math"
	"os"
	"sync"
	"time"

	"skerry/keeper/internal/httpwire"
	"skerry/keeper/internal/linux"
)

// Errors of an exchange.
var (
	ErrChannel = errors.New("the process has no channel")
	ErrBusy    = errors.New("another exchange with the process is in progress")
)

const (
	leaveWait = 5 * time.Second // for the end of an abandoned exchange
	copySize  = 32 << 10
)

// exchange passes bytes to a program over its channel and streams its output and messages back. The program waits for a
// host that reads slowly. If the host hangs up, the program continues without waiting.
type exchange struct {
	stream
	meter usageMeter
	once  sync.Once
	halt  chan struct{} // closed when the host has hung up or ended the exchange
	free  chan struct{} // closed when the next exchange may start
	over  bool          // the host has ended it; valid, like the next two, once halt is closed
	until int64         // where the output of the exchange ends
	usage usage
}

// exchanges admits one exchange at a time.
type exchanges struct {
	mu  sync.Mutex
	now *exchange
}

// enter makes an exchange the current one. It waits for a previous exchange whose host has hung up, which is about to
// end.
func (es *exchanges) enter(e *exchange) bool {
	late := time.NewTimer(leaveWait)
	defer late.Stop()
	for {
		es.mu.Lock()
		now := es.now
		if now == nil {
			es.now = e
		}
		es.mu.Unlock()
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

func (es *exchanges) leave() {
	es.mu.Lock()
	defer es.mu.Unlock()
	close(es.now.free)
	es.now = nil
}

// Exchange serves one exchange on an upgraded connection. The request's body, of the given length, is the first input
// of the program.
func (p *Process) Exchange(c *httpwire.Conn, body io.Reader, length int64) error {
	switch {
	case !p.Channel:
		return ErrChannel
	case !p.Running() || p.channel == nil:
		return ErrEnded
	}
	e := &exchange{stream: stream{Process: p, conn: c, left: math.MaxInt64}, halt: make(chan struct{}), free: make(chan struct{})}
	if !p.exchanges.enter(e) {
		return ErrBusy
	}
	p.settle()
	e.reader = p.journal.PaceNow()
	e.meter = p.measure()
	defer e.meter.sampler.stop()
	e.serve(body, length)
	return nil
}

type exchangeStarted struct {
	PID    int    `json:"pid"`
	Cgroup uint64 `json:"cgroup"`
	Offset int64  `json:"offset"`
	Clock  int64  `json:"clock"`
}

// serve runs the exchange. It leaves before sending the last frame, so that the next exchange of a fast host is not
// refused.
func (e *exchange) serve(body io.Reader, length int64) {
	e.table.streaming.Add(1)
	streamed := sync.OnceFunc(func() { e.table.streaming.Add(-1) })
	defer streamed()
	var kind byte
	var last any
	listening := make(chan struct{})
	err := e.conn.Upgrade(httpwire.Started, exchangeStarted{e.PID, e.Cgroup(), e.reader.Offset(), linux.CoarseClock()})
	if err == nil {
		go func() {
			e.listen(body, length)
			close(listening)
		}()
		kind, last = e.send()
	} else {
		close(listening)
	}
	e.reader.Close()
	if last == nil {
		e.conn.End()
		<-listening // from here on nothing of this exchange reaches the channel
		e.exchanges.leave()
		return
	}
	e.exchanges.leave() // first: the host may start another as soon as it sees the last frame
	e.conn.Downgrade(kind, last)
	streamed()
	<-listening
}

// send streams output until the exchange ends and returns the last frame; nil: the host has hung up.
func (e *exchange) send() (kind byte, last any) {
	channelClosed := e.channelClosed
	for {
		halted := false
		select {
		case <-e.halt:
			if !e.over {
				return 0, nil
			}
			if halted, e.left = true, e.until-e.reader.Offset(); e.left <= 0 {
				return httpwire.ExchangeDone, e.usage
			}
		default:
		}
		more, ended := e.reader.More()
		if !more && !ended && !halted {
			more, ended = e.reader.Wait(e.halt, channelClosed)
		}
		var err error
		switch {
		case ended:
			return httpwire.Exit, e.meter.exit(e.Process)
		case more:
			err = e.piece()
		case !halted && isClosed(channelClosed):
			channelClosed = nil
			err = e.conn.WriteJSON(httpwire.ChannelClosed, struct{}{})
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

// listen passes on the body and the host's frames until the connection ends or speaks HTTP again.
func (e *exchange) listen(body io.Reader, length int64) {
	err := e.copyBody(body, length)
	for err == nil {
		var kind byte
		var data []byte
		if kind, data, err = e.conn.ReadFrame(); err == nil {
			err = e.handleFrame(kind, data)
		}
	}
	if err != httpwire.ErrDowngraded {
		e.conn.End()
		e.once.Do(func() { close(e.halt) })
	}
}

// copyBody passes the body to the channel at the program's speed.
func (e *exchange) copyBody(body io.Reader, length int64) error {
	if length == 0 {
		return nil
	}
	buffer := make([]byte, min(length, copySize))
	for {
		n, err := body.Read(buffer)
		if n > 0 {
			if err := e.put(buffer[:n]); err != nil {
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

// put writes to the channel. It drops bytes that the program no longer reads; the only error is a host that hung up.
func (e *exchange) put(data []byte) error {
	for len(data) > 0 {
		_ = e.channel.SetWriteDeadline(time.Now().Add(hangUpCheck))
		n, err := e.channel.Write(data)
		data = data[n:]
		switch {
		case err == nil:
		case !errors.Is(err, os.ErrDeadlineExceeded) || !e.Running():
			return nil
		case e.conn.HungUp():
			return errHungUp
		}
	}
	return nil
}

// handleFrame handles a frame of the host. At the end of the exchange it records all output up to that moment and
// measures the usage.
func (e *exchange) handleFrame(kind byte, data []byte) error {
	switch {
	case isClosed(e.halt): // already over
	case kind == httpwire.Stdin:
		return e.put(data)
	case kind == httpwire.Signal:
		return e.stream.handleFrame(kind, data)
	case kind == httpwire.EndExchange:
		e.once.Do(func() {
			e.settle()
			_, e.until = e.Kept()
			e.over, e.usage = true, e.meter.read(e.Process)
			close(e.halt)
		})
	}
	return nil
}
