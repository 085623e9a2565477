package journal

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"skerry/keeper/internal/httpwire"
)

const (
	maxTail     = 4 << 10 // bytes that may wait in memory
	tailDelay   = 50 * time.Millisecond
	maxParked   = 256 << 10 // bytes in memory of finished processes when the disk is full
	maxSegments = 64
)

// Journal is the output of one process: segments, followed by a tail in memory. The tail is either young (most commands
// print little and end before a file is worthwhile) or has no space on disk. Bytes between two segments are lost.
type Journal struct {
	store   *Store
	id      string
	bound   int64
	piece   int64       // size of a segment
	mapping atomic.Bool // its segments are mapped
	small   int64       // temporary segment size after the disk was full; 0: piece

	writing sync.Mutex // one writer at a time; taken before mu

	mu        sync.Mutex
	segments  []*segment
	active    *segment // the last segment while it is written to; the tail is then empty
	tail      []byte
	tailFirst int64
	end       int64
	bytes     int64         // in files
	pace      *Reader       // the writer waits for this reader
	closed    bool          // the process has ended
	changed   chan struct{} // closed with the next change; nil: no waiter
	timed     bool          // Flush is scheduled
	parked    bool          // the tail is counted in the store
}

// Kept returns the range from the first byte that was not dropped to the end.
func (j *Journal) Kept() (from, end int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next(0), j.end
}

// next returns the first kept offset at or after the given one. mu is held.
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

// MaxPayload returns the maximum payload of a frame.
func (j *Journal) MaxPayload() int { return int(j.piece) - httpwire.FrameHeader }

// wait waits for the next change. mu is held, except during the wait.
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

// AwaitCapacity waits until the journal has capacity beyond the unread bytes of a paced reader. Without one it returns
// at once.
func (j *Journal) AwaitCapacity() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for j.pace != nil && j.unread()+j.piece > j.bound {
		j.wait()
	}
}

// unread returns the bytes in files that the paced reader still needs or, with mapped segments, that may still be in
// flight. mu is held.
func (j *Journal) unread() int64 {
	n, passed := int64(0), j.pace.offset
	if j.mapping.Load() {
		passed -= inFlight
	}
	for _, g := range j.segments {
		if g.end > passed {
			n += g.held
		}
	}
	return n
}

// Close marks the end of the output.
func (j *Journal) Close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	j.wake()
	if len(j.tail) == 0 {
		j.seal()
	} else if !j.timed {
		j.timed = true
		time.AfterFunc(tailDelay, j.Flush)
	}
}

// seal ends the active segment. mu is held.
func (j *Journal) seal() {
	if g := j.active; g != nil {
		j.active = nil
		if j.pace != nil && g.end > j.pace.offset {
			g.pinned = true // a paced reader loses nothing, even when the file is deleted
			return
		}
		g.release()
	}
}

// droppable returns the bytes of files that could be dropped, and whether the process has ended.
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

// dropOldest removes the first segment, unless a paced reader still needs it. It returns the freed bytes: none while
// the file is open elsewhere.
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

// drop removes a segment from the list. mu is held; the caller discards the file.
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
	g.stopMapping()
}

// account updates the disk usage of a segment. mu is held.
func (j *Journal) account(g *segment, n int64) {
	j.bytes += n - g.held
	j.store.bytes.Add(n - g.held)
	g.held = n
}

// Remove deletes everything, including files. The process has ended.
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
