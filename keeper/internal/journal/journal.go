package journal

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"skerry/keeper/internal/wire"
)

const (
	tailMost     = 4 << 10 // what may wait in memory
	tailTime     = 50 * time.Millisecond
	parkedMost   = 256 << 10 // in memory of finished processes, when there is no disk for it
	mostSegments = 64
)

// Journal is the output of one process: segments, and after them a tail that is on no disk, either because it is young
// (most commands print little and are over before a file is worth it) or because there is no room. What lies between two
// of them is gone.
type Journal struct {
	store *Store
	id    string
	bound int64
	piece int64       // a segment's size
	hot   atomic.Bool // its segments are mapped
	small int64       // what it is for now, after the disk was full; 0: as usual

	writing sync.Mutex // one writer at a time; taken before mu

	mu        sync.Mutex
	segments  []*segment
	active    *segment // the last one, while it is written to; the tail is empty then
	tail      []byte
	tailFirst int64
	end       int64
	bytes     int64         // in files
	pace      *Reader       // the writer waits for this one
	closed    bool          // the process has ended
	changed   chan struct{} // closed with the next change; nil: nobody waits
	timed     bool          // Flush will be called
	parked    bool          // the tail is counted in the store
}

// Kept says which bytes there are: from the first that has not been dropped up to the end.
func (j *Journal) Kept() (from, end int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next(0), j.end
}

// next is the first offset from the given one on that is kept. mu is held.
func (j *Journal) next(offset int64) int64 {
	for _, g := range j.segments {
		if g.end > offset {
			return max(offset, g.first)
		}
	}
	if len(j.tail) > 0 {
		return max(offset, j.tailFirst)
	}
	return j.end
}

// Most is how large a frame may be, without its head.
func (j *Journal) Most() int { return int(j.piece) - wire.FrameHead }

// wait returns after the next change. mu is held, but not meanwhile.
func (j *Journal) wait() {
	changed := j.change()
	j.mu.Unlock()
	<-changed
	j.mu.Lock()
}

func (j *Journal) change() chan struct{} {
	if j.changed == nil {
		j.changed = make(chan struct{})
	}
	return j.changed
}

func (j *Journal) wake() {
	if j.changed != nil {
		close(j.changed)
		j.changed = nil
	}
}

// Await returns when there is room for what a paced reader has not read yet; without one, at once.
func (j *Journal) Await() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for j.pace != nil && j.unread()+j.piece > j.bound {
		j.wait()
	}
}

// unread is how much in files the paced reader still needs, or of a hot journal may be on its way. mu is held.
func (j *Journal) unread() int64 {
	n, passed := int64(0), j.pace.offset
	if j.hot.Load() {
		passed -= inFlight
	}
	for _, g := range j.segments {
		if g.end > passed {
			n += g.held
		}
	}
	return n
}

// Close says that nothing follows.
func (j *Journal) Close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	j.wake()
	if len(j.tail) == 0 {
		j.seal()
	} else if !j.timed {
		j.timed = true
		time.AfterFunc(tailTime, j.Flush)
	}
}

// seal ends the active segment. mu is held.
func (j *Journal) seal() {
	if g := j.active; g != nil {
		j.active = nil
		if j.pace != nil && g.end > j.pace.offset {
			g.pinned = true // a paced reader loses nothing, not even when the file is deleted
			return
		}
		g.release()
	}
}

// droppable says how many bytes of files could go, and whether the process has ended.
func (j *Journal) droppable() (size int64, finished bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, g := range j.segments {
		if j.pace != nil && g.end > j.pace.offset {
			break
		}
		size += g.held
	}
	return size, j.closed
}

// dropOldest removes the first segment, unless a paced reader still needs it. The disk has so many bytes more then: none as
// long as somebody has the file open.
func (j *Journal) dropOldest() (freed int64, dropped bool) {
	j.mu.Lock()
	if len(j.segments) == 0 || j.pace != nil && j.segments[0].end > j.pace.offset {
		j.mu.Unlock()
		return 0, false
	}
	g := j.segments[0]
	j.drop(g)
	if g.users == 0 {
		freed = g.held
	}
	j.mu.Unlock()
	j.store.discard(g)
	return freed, true
}

// drop takes a segment off the list. mu is held; the file is the caller's to discard.
func (j *Journal) drop(g *segment) {
	i := slices.Index(j.segments, g)
	if i < 0 {
		return
	}
	j.segments = slices.Delete(j.segments, i, i+1)
	j.bytes -= g.held
	g.gone = true
	if g == j.active {
		j.active = nil
		g.release()
	}
	g.unpin()
	g.cool()
}

// account counts what a segment takes of the disk. mu is held.
func (j *Journal) account(g *segment, n int64) {
	j.bytes += n - g.held
	j.store.bytes.Add(n - g.held)
	g.held = n
}

// Remove forgets everything, files and all. The process has ended.
func (j *Journal) Remove() {
	j.writing.Lock()
	defer j.writing.Unlock()
	j.mu.Lock()
	j.unpark()
	j.closed, j.tail, j.pace = true, nil, nil
	j.wake()
	j.mu.Unlock()
	for dropped := true; dropped; {
		_, dropped = j.dropOldest()
	}
	j.store.forget(j)
}
