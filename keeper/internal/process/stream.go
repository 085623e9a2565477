package process

import (
	"encoding/json"
	"math"
	"sync"

	"skerry/keeper/internal/journal"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/wire"
)

const windowSize = 16 << 10

var windows = sync.Pool{New: func() any { return new([windowSize]byte) }}

// stream shows one process's output on one connection.
type stream struct {
	*Process
	conn   *wire.Conn
	reader *journal.Reader
	own    bool // the command's own: it goes when the host goes
	follow bool
	left   int64         // bytes that may still be sent
	gone   chan struct{} // closed when the host has left
}

// View is what the host asks to see of an output.
type View struct {
	Since  int64 // below 0: from the end
	Follow bool
	Limit  int64 // 0: none
}

// Stream serves the upgraded connection of a run: its output, as fast as the host takes it, and its exit.
func (p *Process) Stream(c *wire.Conn) {
	s := &stream{Process: p, conn: c, reader: p.own, own: true, follow: true, left: math.MaxInt64}
	s.serve(map[string]uint64{"pid": uint64(p.PID), "cgroup": p.Cgroup()})
}

// Output serves an upgraded connection with what the journal has.
func (p *Process) Output(c *wire.Conn, v View) error {
	reader, err := p.journal.Read(v.Since)
	if err != nil {
		return err
	}
	s := &stream{Process: p, conn: c, reader: reader, follow: v.Follow, left: v.Limit}
	if s.left == 0 {
		s.left = math.MaxInt64
	}
	s.serve(map[string]int64{"pid": int64(p.PID), "offset": reader.Offset()})
	return nil
}

// serve returns when the last frame has been sent and the host says something else, or leaves.
func (s *stream) serve(started any) {
	defer s.reader.Close()
	s.table.showing.Add(1)
	shown := sync.OnceFunc(func() { s.table.showing.Add(-1) })
	defer shown()
	if s.conn.Upgrade(wire.Started, started) != nil {
		s.lost()
		return
	}
	s.gone = make(chan struct{})
	listening := make(chan struct{})
	go func() {
		s.listen()
		close(listening)
	}()
	kind, last := s.send()
	s.reader.Close() // now, and not when the host speaks again: the files are to go
	if last == nil {
		s.conn.End()
		s.lost()
	} else {
		s.conn.Downgrade(kind, last)
	}
	shown()
	<-listening
}

type pause struct {
	Offset int64 `json:"offset"`
	More   bool  `json:"more"`
}

// send shows output until there is no more to show, and returns the last frame; nil: the host is gone.
func (s *stream) send() (kind byte, last any) {
	for {
		more, ended := s.reader.More()
		if !more && !ended && s.follow && s.left > 0 {
			more, ended = s.reader.Wait(s.gone, nil)
			if !more && !ended {
				return 0, nil
			}
		}
		switch {
		case ended:
			return wire.Exit, s.status
		case !more || s.left == 0:
			return wire.Pause, pause{s.reader.Offset(), more}
		}
		if s.piece() != nil {
			return 0, nil
		}
	}
}

func (s *stream) piece() error {
	window := windows.Get().(*[windowSize]byte)
	defer windows.Put(window)
	p := s.reader.Next(window[:], s.left)
	if p.Missing > 0 {
		return s.conn.WriteJSON(wire.Missing, map[string]int64{"missing": p.Missing})
	}
	s.left -= p.Data
	return s.conn.WriteFrames(p.Frames, p.Rest)
}

// lost is what happens when the host is gone: its run goes too.
func (s *stream) lost() {
	if s.own && s.Running() {
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
		if err == nil {
			err = s.obey(kind, body)
		}
		if err != nil {
			s.conn.End()
			close(s.gone)
			s.lost()
			return
		}
	}
}

func (s *stream) obey(kind byte, body []byte) error {
	switch kind {
	case wire.Stdin:
		if s.feed != nil && len(body) > 0 && s.feed.put(input{data: body}, s.conn.HungUp) == errLeft {
			return errLeft
		}
	case wire.StdinEOF:
		if s.feed != nil && s.feed.put(input{}, s.conn.HungUp) == errLeft {
			return errLeft
		}
	case wire.Resize:
		var size Size
		if json.Unmarshal(body, &size) == nil && size.Valid() {
			_ = s.Resize(size)
		}
	case wire.Signal:
		if signal, ok := linux.Signal(string(body)); ok {
			_ = s.Signal(signal)
		}
	}
	return nil
}
