package journal

import (
	"time"

	"skerry/keeper/internal/disk"
	"skerry/keeper/internal/wire"
)

// Append adds a frame, whose first bytes are room for its head. It waits for nobody but a paced reader.
func (j *Journal) Append(kind byte, frame []byte) {
	wire.PutHead(frame, kind)
	j.writing.Lock()
	defer j.writing.Unlock()
	if j.keepYoung(frame) || j.flush() && j.put(frame, j.end, j.end+payload(frame)) {
		return
	}
	j.homeless(frame)
}

func payload(frame []byte) int64 { return int64(len(frame) - wire.FrameHead) }

// keepYoung puts a frame into the tail, if it is small and no file is open.
func (j *Journal) keepYoung(frame []byte) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.active != nil || len(j.tail)+len(frame) > tailMost {
		return false
	}
	if len(j.tail) == 0 {
		j.tailFirst = j.end
	}
	if !j.timed {
		j.timed = true
		time.AfterFunc(tailTime, j.Flush)
	}
	j.tail = append(j.tail, frame...)
	j.end += payload(frame)
	j.wake()
	return true
}

// Flush writes down what waits in memory.
func (j *Journal) Flush() {
	j.writing.Lock()
	defer j.writing.Unlock()
	j.flush()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.timed = false
	if j.closed {
		j.seal()
		j.park()
	}
}

// park keeps the tail of a finished process in memory, as long as there are few of them. mu is held.
func (j *Journal) park() {
	if n := int64(len(j.tail)); n > 0 && !j.parked {
		if j.parked = j.store.parked.Add(n) <= parkedMost; !j.parked {
			j.store.parked.Add(-n)
			j.tail = nil
		}
	}
}

// unpark is called before the tail goes. mu is held.
func (j *Journal) unpark() {
	if j.parked {
		j.parked = false
		j.store.parked.Add(-int64(len(j.tail)))
	}
}

// TryFlush is Flush, unless somebody else writes.
func (j *Journal) TryFlush() {
	if j.writing.TryLock() {
		defer j.writing.Unlock()
		j.flush()
	}
}

// flush is Flush. writing is held: only its holder changes end and tail.
func (j *Journal) flush() bool {
	return len(j.tail) == 0 || j.put(j.tail, j.tailFirst, j.end)
}

// put writes frames to a file. On a full disk something else goes, until there is room for them: after a full disk segments
// are small, and one large frame takes the place of many. It gives up when that did not help, because others fill the disk.
func (j *Journal) put(frames []byte, first, end int64) bool {
	const tries = 4
	if !j.within(int64(len(frames))) {
		return false
	}
	for try, freed := 0, int64(0); try < tries || freed < 2*int64(len(frames)); try++ {
		if disk.Do(func() error { return j.write(frames, first, end) }) == nil {
			return true
		}
		j.mu.Lock()
		j.seal()
		j.small = max(j.bytes/16, leastSegment) // so that what is dropped next is not all there is
		j.mu.Unlock()
		n, dropped := j.store.MakeRoom(j)
		if !dropped {
			break
		}
		freed += n
	}
	return false
}

// within drops what is too much for the bounds of the process and of the sandbox. A paced reader's bound is kept by Await.
func (j *Journal) within(n int64) bool {
	for {
		j.mu.Lock()
		over := j.bytes+n > j.bound || len(j.segments) >= mostSegments
		j.mu.Unlock()
		if !over {
			break
		}
		if _, dropped := j.dropOldest(); !dropped {
			break
		}
	}
	return j.store.reserve(n)
}

func (j *Journal) write(frames []byte, first, end int64) error {
	g, err := j.room(first, int64(len(frames)))
	if err == nil {
		err = writeAt(g.fd, frames, g.size)
	}
	if err == nil && g.base != 0 {
		err = g.conclude(g.size + int64(len(frames)))
	}
	if err == nil {
		j.publish(g, int64(len(frames)), end)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if g != nil {
		g.release()
	}
	if err != nil {
		j.unmake(g)
	}
	return err
}

// publish says that there are so many more bytes of frames in a segment. If it was dropped meanwhile, they count as missing.
func (j *Journal) publish(g *segment, n, end int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.unpark()
	j.end, j.tail = end, nil
	if !g.gone {
		g.end = end
		g.size += n
		j.account(g, max(g.held, g.size))
	}
	j.wake()
}

// unmake takes back a segment that nothing could be written to. mu is held.
func (j *Journal) unmake(g *segment) {
	if g != nil && g.size == 0 && !g.gone {
		j.drop(g)
		_ = j.store.unlink(g.name)
	}
}

// room returns the segment to write to, in use once more.
func (j *Journal) room(first, n int64) (*segment, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if g := j.active; g != nil && g.size+n > j.size() && g.size > 0 {
		j.seal()
		j.small *= 2
	}
	if g := j.active; g != nil {
		g.users++
		return g, nil
	}
	j.mu.Unlock()
	g, err := newSegment(j.store, j.id, first)
	j.mu.Lock()
	if err != nil {
		return nil, err
	}
	j.segments = append(j.segments, g)
	j.active = g
	g.users++
	return g, nil
}

// size is that of the active segment. mu is held.
func (j *Journal) size() int64 {
	if j.small >= j.piece {
		j.small = 0
	}
	if j.small > 0 {
		return j.small
	}
	return j.piece
}

// homeless takes a frame for which there is no room: a paced reader gets it from memory, for others the oldest is lost.
func (j *Journal) homeless(frame []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	start := j.end
	j.end += payload(frame)
	if j.pace == nil {
		if cut := len(frame) - tailMost; cut > 0 {
			frame[cut] = frame[0]
			frame = frame[cut:]
			wire.PutHead(frame, frame[0])
		}
		j.tail, j.tailFirst = append([]byte{}, frame...), j.end-payload(frame)
		j.wake()
		return
	}
	if len(j.tail) == 0 {
		j.tailFirst = start
	}
	j.tail = append(j.tail, frame...)
	j.wake()
	for j.pace != nil && j.pace.offset < j.end {
		j.wait()
	}
	j.tail = nil
}

// discard deletes the file of a segment that was dropped.
func (s *Store) discard(g *segment) {
	s.bytes.Add(-g.held)
	_ = disk.Do(func() error { return s.unlink(g.name) })
}
