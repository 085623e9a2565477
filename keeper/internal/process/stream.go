package process

import (
	"encoding/json"
	"math"
	"sync"

	"skerry/keeper/internal/httpwire"
	"skerry/keeper/internal/journal"
	"skerry/keeper/internal/linux"
)

const windowSize = 16 << 10

var windows = sync.Pool{New: func() any { return new([windowSize]byte) }}

// stream sends one process's output over one connection.
type stream struct {
	*Process
	conn   *httpwire.Conn
	reader *journal.Reader
	own    bool // the run's own stream: the command dies with it
	follow bool
	left   int64         // bytes that may still be sent
	gone   chan struct{} // closed when the host has hung up
}

// View selects a part of an output.
type View struct {
	Since  int64 // negative: from the end
	Follow bool
	Limit  int64 // 0: none
	Pace   bool  // the program waits for the reader, if it waits for no other one
}

// Stream serves the upgraded connection of a run: its output at the host's speed, then its exit.
func (p *Process) Stream(c *httpwire.Conn) {
	s := &stream{Process: p, conn: c, reader: p.pacedReader, own: true, follow: true, left: math.MaxInt64}
	s.serve(map[string]uint64{"pid": uint64(p.PID), "cgroup": p.Cgroup()})
}

// Output serves an upgraded connection with recorded output.
func (p *Process) Output(c *httpwire.Conn, v View) error {
	reader, err := p.journal.Read(v.Since)
	if err != nil {
		return err
	}
	if v.Pace {
		p.journal.PaceFrom(reader)
	}
	s := &stream{Process: p, conn: c, reader: reader, follow: v.Follow, left: v.Limit}
	if s.left == 0 {
		s.left = math.MaxInt64
	}
	s.serve(map[string]int64{"pid": int64(p.PID), "offset": reader.Offset()})
	return nil
}

// serve returns when the last frame has been sent and the host sends something else or hangs up.
func (s *stream) serve(started any) {
	defer s.reader.Close()
	s.table.streaming.Add(1)
	streamed := sync.OnceFunc(func() { s.table.streaming.Add(-1) })
	defer streamed()
	if s.conn.Upgrade(httpwire.Started, started) != nil {
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
	s.reader.Close() // now rather than at the host's next request: the files should be free to go
	if last == nil {
		s.conn.End()
		s.lost()
	} else {
		s.conn.Downgrade(kind, last)
	}
	streamed()
	<-listening
}

type pause struct {
	Offset int64 `json:"offset"`
	More   bool  `json:"more"`
}

// send streams output to its end and returns the last frame; nil: the host has hung up.
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
			return httpwire.Exit, s.status
		case !more || s.left == 0:
			return httpwire.Pause, pause{s.reader.Offset(), more}
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
		return s.conn.WriteJSON(httpwire.Missing, map[string]int64{"missing": p.Missing})
	}
	s.left -= p.Data
	return s.conn.WriteFrames(p.Frames, p.Rest)
}

// lost kills the run after the host has hung up.
func (s *stream) lost() {
	if s.own && s.Running() {
		s.Kill()
	}
}

// listen handles the host's frames until the connection ends.
func (s *stream) listen() {
	for {
		kind, body, err := s.conn.ReadFrame()
		if err == httpwire.ErrDowngraded {
			return
		}
		if err == nil {
			err = s.handleFrame(kind, body)
		}
		if err != nil {
			s.conn.End()
			close(s.gone)
			s.lost()
			return
		}
	}
}

// handleFrame handles a frame of the host. Unknown frames are ignored.
func (s *stream) handleFrame(kind byte, body []byte) error {
	switch kind {
	case httpwire.Stdin:
		if s.stdinWriter != nil && len(body) > 0 && s.stdinWriter.put(input{data: body}, s.conn.HungUp) == errHungUp {
			return errHungUp
		}
	case httpwire.StdinEOF:
		if s.stdinWriter != nil && s.stdinWriter.put(input{}, s.conn.HungUp) == errHungUp {
			return errHungUp
		}
	case httpwire.Resize:
		var size Size
		if json.Unmarshal(body, &size) == nil && size.Valid() {
			_ = s.Resize(size)
		}
	case httpwire.Signal:
		if signal, ok := linux.Signal(string(body)); ok {
			_ = s.Signal(signal)
		}
	}
	return nil
}
