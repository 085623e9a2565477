package journal

import (
	"encoding/binary"
	"errors"
	"syscall"

	"skerry/keeper/internal/httpwire"
	"skerry/keeper/internal/iolimit"
)

// ErrRange is an offset beyond the end.
var ErrRange = errors.New("the offset is beyond the end of the output")

// Reader reads a journal from an offset on. It belongs to one goroutine.
type Reader struct {
	j      *Journal
	offset int64 // of the next byte; guarded by the journal's mu
	seg    *segment
	holds  bool // it holds seg's fd
	paced  bool
	at     int64 // position in seg of the frame that contains offset, or of an earlier one
	skip   int64 // bytes of output between the two
}

// Piece is the next part of the output: a gap of Missing bytes, or Frames, the last of which may continue in Rest.
type Piece struct {
	Missing int64
	Frames  []byte
	Rest    httpwire.Rest
	Data    int64 // bytes of output
}

// Read returns a reader from an offset on. A negative offset counts from the end and skips lost bytes.
func (j *Journal) Read(since int64) (*Reader, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if since > j.end {
		return nil, ErrRange
	}
	if since < 0 {
		since = j.next(max(0, j.end+since))
	}
	return &Reader{j: j, offset: since}, nil
}

// Pace returns a reader that the writer waits for when it is behind by the bound of the journal.
func (j *Journal) Pace() *Reader {
	r := &Reader{j: j, paced: true}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pace = r
	return r
}

// PaceNow is Pace from the current end on. Its segments may be overwritten after it is closed, so it gets copies.
func (j *Journal) PaceNow() *Reader {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pace = &Reader{j: j, offset: j.end}
	return j.pace
}

// PaceFrom makes the writer wait for this reader too, unless it waits for another one already. Output that was lost
// before stays lost. Like PaceNow, it gets copies.
func (j *Journal) PaceFrom(r *Reader) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.pace == nil {
		j.pace = r
	}
}

// Offset returns the position of the next byte.
func (r *Reader) Offset() int64 { return r.offset }

// Close releases the files and the writer.
func (r *Reader) Close() {
	r.j.mu.Lock()
	defer r.j.mu.Unlock()
	r.leave()
	if r.j.pace == r {
		r.j.pace = nil
		for _, g := range r.j.segments {
			g.unpin()
		}
		r.j.wake()
	}
}

func (r *Reader) leave() {
	if r.holds {
		if r.j.pace == r {
			r.seg.unpin()
		}
		r.seg.release()
		r.holds = false
	}
}

// Wait returns (true, false) when there is more to read, (false, true) at the end of a finished journal, and (false,
// false) when one of the channels is closed.
func (r *Reader) Wait(stop, other <-chan struct{}) (more, ended bool) {
	for {
		r.j.mu.Lock()
		more, ended = r.offset < r.j.end, r.j.closed
		if more || ended {
			r.j.mu.Unlock()
			return more, ended && !more
		}
		r.leave() // so that a file dropped meanwhile leaves the disk
		changed := r.j.change()
		r.j.mu.Unlock()
		select {
		case <-changed:
		case <-stop:
			return false, false
		case <-other:
			return false, false
		}
	}
}

// More reports whether there is something to read now and, if not, whether the journal has ended.
func (r *Reader) More() (more, ended bool) {
	r.j.mu.Lock()
	defer r.j.mu.Unlock()
	more = r.offset < r.j.end
	return more, r.j.closed && !more
}

// Next returns up to `limit` bytes of output. The result lies in the window and is valid until the next call.
func (r *Reader) Next(window []byte, limit int64) Piece {
	for {
		r.j.mu.Lock()
		if next := r.j.next(r.offset); next > r.offset {
			missing := next - r.offset
			r.advance(missing)
			r.j.mu.Unlock()
			return Piece{Missing: missing}
		}
		g := r.j.segmentAt(r.offset)
		if g == nil {
			piece := r.fromTail(window, limit)
			r.j.mu.Unlock()
			return piece
		}
		err := r.enter(g)
		size, end := g.size, g.end
		r.j.mu.Unlock()
		var piece Piece
		if err == nil {
			err = iolimit.Do(func() (err error) {
				piece, err = r.fromFile(window, min(limit, end-r.offset), size)
				return err
			})
		}
		if err == nil {
			r.move(piece.Data)
			return piece
		}
		r.discardCorrupt(g)
	}
}

func (r *Reader) move(n int64) {
	r.j.mu.Lock()
	defer r.j.mu.Unlock()
	r.advance(n)
}

// advance moves the offset and wakes a writer that waits for it. mu is held.
func (r *Reader) advance(n int64) {
	r.offset += n
	if r.j.pace == r {
		r.j.wake()
	}
}

func (j *Journal) segmentAt(offset int64) *segment {
	for _, g := range j.segments {
		if g.end > offset {
			return g
		}
	}
	return nil
}

// enter makes a segment the current one. mu is held, except while a file is opened.
func (r *Reader) enter(g *segment) error {
	if r.seg == g && r.holds {
		return nil
	}
	r.leave()
	if r.seg != g {
		r.seg, r.at, r.skip = g, 0, r.offset-g.first
	}
	if g.fd >= 0 {
		r.holds = true
		g.users++
		if r.j.pace == r {
			g.unpin()
		}
		return nil
	}
	r.j.mu.Unlock()
	var fd int
	err := iolimit.Do(func() (err error) {
		fd, err = r.j.store.open(g.name, g.id)
		return err
	})
	r.j.mu.Lock()
	if err != nil {
		return err
	}
	if g.fd < 0 {
		g.fd = fd
	} else {
		_ = syscall.Close(fd)
	}
	g.users++
	r.holds = true
	return nil
}

// discardCorrupt gives up a segment whose file is gone or was changed by root inside.
func (r *Reader) discardCorrupt(g *segment) {
	r.j.mu.Lock()
	r.leave()
	known := !g.gone
	r.j.drop(g)
	r.j.mu.Unlock()
	if known {
		r.j.store.discard(g)
	}
}

// fromTail copies frames from memory. mu is held.
func (r *Reader) fromTail(window []byte, limit int64) Piece {
	at, skip := int64(0), r.offset-r.j.tailFirst
	tail := r.j.tail
	for {
		n := int64(binary.BigEndian.Uint32(tail[at+1:]))
		if n > skip {
			break
		}
		at, skip = at+httpwire.FrameHeader+n, skip-n
	}
	r.leave()
	n := int64(binary.BigEndian.Uint32(tail[at+1:])) - skip
	n = min(n, limit, int64(len(window)-httpwire.FrameHeader))
	frame := window[:httpwire.FrameHeader+n]
	copy(frame[httpwire.FrameHeader:], tail[at+httpwire.FrameHeader+skip:])
	httpwire.PutHeader(frame, tail[at])
	r.advance(n)
	return Piece{Frames: frame, Data: n}
}
