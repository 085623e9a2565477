package keeper

import (
	"encoding/json"
	"errors"
	"time"

	"skerry/keeper/internal/buffers"
	"skerry/keeper/internal/files"
	"skerry/keeper/internal/track"
	"skerry/keeper/internal/wire"
)

const (
	maxReads  = 4096     // paths at once
	pieceRoom = 32 << 10 // bytes that a piece has room for at least
)

// readEnd is the last frame.
type readEnd struct {
	Count int           `json:"count"`
	Error *wire.Failure `json:"error"`
}

// reading makes frames in a buffer, many to one write: 4 for each path with what is there, 1 for its bytes, 6 after them.
type reading struct {
	c      *wire.Conn
	buffer []byte
	used   int
	last   time.Time
	count  int
}

func (r *reading) flush() error {
	if r.used == 0 {
		return nil
	}
	err := r.c.WriteFrames(r.buffer[:r.used], wire.Rest{})
	r.used, r.last = 0, time.Now()
	if err != nil {
		return files.ErrGone
	}
	return nil
}

func (r *reading) put(kind byte, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if len(r.buffer)-r.used < len(text)+wire.FrameHead {
		if err := r.flush(); err != nil {
			return err
		}
	}
	copy(r.buffer[r.used+wire.FrameHead:], text)
	r.frame(kind, len(text))
	return nil
}

func (r *reading) frame(kind byte, size int) {
	wire.PutHeadOf(r.buffer[r.used:], kind, size)
	r.used += wire.FrameHead + size
}

// room is where the next piece goes. A flush that fails fails again.
func (r *reading) room() []byte {
	if len(r.buffer)-r.used < pieceRoom {
		_ = r.flush()
	}
	return r.buffer[r.used+wire.FrameHead:]
}

func (r *reading) beat() error {
	if time.Since(r.last) < pulseTime {
		return nil
	}
	if r.c.HungUp() {
		return files.ErrGone
	}
	if err := r.put(wire.Started, struct{}{}); err != nil {
		return err
	}
	return r.flush()
}

// readTracked answers with the contents of some paths.
func (k *keeper) readTracked(c *wire.Conn, q *wire.Request) {
	wish := struct {
		Tracker string   `json:"tracker"`
		Paths   [][]byte `json:"paths"`
	}{}
	if !decode(c, q, &wish) {
		return
	}
	if len(wish.Paths) > maxReads || q.Header["upgrade"] != "skerry-frames" {
		c.Fail(400, "bad_request", "paths: more than 4,096, or Upgrade: skerry-frames is missing")
		return
	}
	t := k.tracker(c, wish.Tracker)
	if t == nil || c.Upgrade(wire.Started, struct{}{}) != nil {
		return
	}
	err := buffers.With(func(buffer []byte) error {
		r := &reading{c: c, buffer: buffer, last: time.Now()}
		return r.end(t.Root(), t.Read(texts(wish.Paths), r.taker()))
	})
	if err != nil {
		c.End()
	}
}

func (r *reading) taker() track.Reader {
	return track.Reader{
		Begin: func(content *track.Content) error {
			r.count++
			return r.put(wire.Started, content)
		},
		Piece: func(n int) error {
			r.frame(wire.Stdout, n)
			return nil
		},
		End: func(end track.End) error {
			if end.Again {
				r.count--
			}
			return r.put(wire.Pause, end)
		},
		Beat: r.beat,
		Room: r.room,
	}
}

func (r *reading) end(root string, err error) error {
	if errors.Is(err, files.ErrGone) {
		return err
	}
	end := readEnd{Count: r.count}
	if err != nil {
		end.Error = failureIn(root, err)
	}
	if err := r.flush(); err != nil {
		return err
	}
	r.c.Downgrade(wire.Exit, end)
	return nil
}
