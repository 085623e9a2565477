package keeper

import (
	"encoding/json"
	"errors"
	"time"

	"skerry/keeper/internal/bufpool"
	"skerry/keeper/internal/files"
	"skerry/keeper/internal/httpwire"
	"skerry/keeper/internal/track"
)

const (
	maxReads = 4096     // paths in one request
	minPiece = 32 << 10 // minimum buffer size for a piece
)

// readEnd is the last frame.
type readEnd struct {
	Count int               `json:"count"`
	Error *httpwire.Failure `json:"error"`
}

// reading collects frames in a buffer, many per write: 4 with the description of each path, 1 for its bytes, 6 after
// them.
type reading struct {
	c      *httpwire.Conn
	buffer []byte
	used   int
	last   time.Time
	count  int
}

func (r *reading) flush() error {
	if r.used == 0 {
		return nil
	}
	err := r.c.WriteFrames(r.buffer[:r.used], httpwire.Rest{})
	r.used, r.last = 0, time.Now()
	if err != nil {
		return files.ErrHungUp
	}
	return nil
}

func (r *reading) put(kind byte, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if len(r.buffer)-r.used < len(text)+httpwire.FrameHeader {
		if err := r.flush(); err != nil {
			return err
		}
	}
	copy(r.buffer[r.used+httpwire.FrameHeader:], text)
	r.frame(kind, len(text))
	return nil
}

func (r *reading) frame(kind byte, size int) {
	httpwire.PutHeaderSize(r.buffer[r.used:], kind, size)
	r.used += httpwire.FrameHeader + size
}

// room returns the buffer for the next piece. It may ignore a failed flush, because the next one fails again.
func (r *reading) room() []byte {
	if len(r.buffer)-r.used < minPiece {
		_ = r.flush()
	}
	return r.buffer[r.used+httpwire.FrameHeader:]
}

func (r *reading) beat() error {
	if time.Since(r.last) < heartbeatInterval {
		return nil
	}
	if r.c.HungUp() {
		return files.ErrHungUp
	}
	if err := r.put(httpwire.Started, struct{}{}); err != nil {
		return err
	}
	return r.flush()
}

// readTracked responds with the contents of the requested paths.
func (k *keeper) readTracked(c *httpwire.Conn, q *httpwire.Request) {
	body := struct {
		Tracker string   `json:"tracker"`
		Paths   [][]byte `json:"paths"`
	}{}
	if !decode(c, q, &body) {
		return
	}
	if len(body.Paths) > maxReads || q.Header["upgrade"] != "skerry-frames" {
		c.Fail(400, "bad_request", "paths: more than 4,096, or the header Upgrade: skerry-frames is missing")
		return
	}
	t := k.tracker(c, body.Tracker)
	if t == nil || c.Upgrade(httpwire.Started, struct{}{}) != nil {
		return
	}
	err := bufpool.With(func(buffer []byte) error {
		r := &reading{c: c, buffer: buffer, last: time.Now()}
		return r.end(t.Root(), t.Read(texts(body.Paths), r.taker()))
	})
	if err != nil {
		c.End()
	}
}

// taker connects the tracker's reader to the frames.
func (r *reading) taker() track.Reader {
	return track.Reader{
		Begin: func(content *track.Content) error {
			r.count++
			return r.put(httpwire.Started, content)
		},
		Piece: func(n int) error {
			r.frame(httpwire.Stdout, n)
			return nil
		},
		End: func(end track.End) error {
			if end.Again {
				r.count--
			}
			return r.put(httpwire.Pause, end)
		},
		Beat:   r.beat,
		Buffer: r.room,
	}
}

func (r *reading) end(root string, err error) error {
	if errors.Is(err, files.ErrHungUp) {
		return err
	}
	end := readEnd{Count: r.count}
	if err != nil {
		end.Error = failureIn(root, err)
	}
	if err := r.flush(); err != nil {
		return err
	}
	r.c.Downgrade(httpwire.Exit, end)
	return nil
}
