package journal

import (
	"encoding/binary"
	"errors"
	"syscall"

	"skerry/keeper/internal/disk"
	"skerry/keeper/internal/wire"
)

// ErrRange is an offset beyond the end.
var ErrRange = errors.New("the output is not that long")

// Reader reads a journal from an offset on. It is one goroutine's.
type Reader struct {
	j      *Journal
	offset int64 // of the next byte; the journal's mu guards it
	seg    *segment
	holds  bool // seg's fd
	paced  bool
	at     int64 // in seg: where the frame begins that offset lies in, or an earlier one
	skip   int64 // bytes of output between the two
}

// Piece is what comes next. Missing: so many bytes are gone. Else Frames, the last of which may go on elsewhere.
type Piece struct {
	Missing int64
	Frames  []byte
	Rest    wire.Rest
	Data    int64 // bytes of output in it
}

// Read returns a reader from an offset on; below 0 it counts from the end, and what is gone there is not asked for.
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

// Pace returns a reader that the writer waits for, once it is a journal's bound behind.
func (j *Journal) Pace() *Reader {
	r := &Reader{j: j, paced: true}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pace = r
	return r
}

// PaceNow is Pace from the present end on. What it reads may be written over once it is closed, so it is given copies.
func (j *Journal) PaceNow() *Reader {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pace = &Reader{j: j, offset: j.end}
	return j.pace
}

// Offset is where the next byte stands.
func (r *Reader) Offset() int64 { return r.offset }

// Close lets the files go, and the writer.
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

// Wait returns when there is more to read (true, false), when there is no more and nothing will follow (false, true), or
// when it is told to stop, one way or the other.
func (r *Reader) Wait(stop, other <-chan struct{}) (more, ended bool) {
	for {
		r.j.mu.Lock()
		more, ended = r.offset < r.j.end, r.j.closed
		if more || ended {
			r.j.mu.Unlock()
			return more, ended && !more
		}
		r.leave() // a file that is dropped meanwhile is to be gone from the disk
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

// More says whether there is something to read now, and if not, whether that is the end.
func (r *Reader) More() (more, ended bool) {
	r.j.mu.Lock()
	defer r.j.mu.Unlock()
	more = r.offset < r.j.end
	return more, r.j.closed && !more
}

// Next returns up to most bytes of output. What it returns lies in the window, and is valid until the next call.
func (r *Reader) Next(window []byte, most int64) Piece {
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
			piece := r.fromTail(window, most)
			r.j.mu.Unlock()
			return piece
		}
		err := r.enter(g)
		size, end := g.size, g.end
		r.j.mu.Unlock()
		var piece Piece
		if err == nil {
			err = disk.Do(func() (err error) {
				piece, err = r.fromFile(window, min(most, end-r.offset), size)
				return err
			})
		}
		if err == nil {
			r.move(piece.Data)
			return piece
		}
		r.spoiled(g)
	}
}

func (r *Reader) move(n int64) {
	r.j.mu.Lock()
	defer r.j.mu.Unlock()
	r.advance(n)
}

// advance moves the offset on, and wakes a writer that waits for it. mu is held.
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

// enter makes a segment the reader's own. mu is held, but not while a file is opened.
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
	err := disk.Do(func() (err error) {
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

// spoiled gives up a segment whose file is gone, or is not what was written: root inside has been there.
func (r *Reader) spoiled(g *segment) {
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
func (r *Reader) fromTail(window []byte, most int64) Piece {
	at, skip := int64(0), r.offset-r.j.tailFirst
	tail := r.j.tail
	for {
		n := int64(binary.BigEndian.Uint32(tail[at+1:]))
		if n > skip {
			break
		}
		at, skip = at+wire.FrameHead+n, skip-n
	}
	r.leave()
	n := int64(binary.BigEndian.Uint32(tail[at+1:])) - skip
	n = min(n, most, int64(len(window)-wire.FrameHead))
	frame := window[:wire.FrameHead+n]
	copy(frame[wire.FrameHead:], tail[at+wire.FrameHead+skip:])
	wire.PutHead(frame, tail[at])
	r.advance(n)
	return Piece{Frames: frame, Data: n}
}
