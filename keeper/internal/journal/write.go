package journal

import (
	"time"

	"skerry/keeper/internal/httpwire"
	"skerry/keeper/internal/iolimit"
)

// Append adds a frame; its first bytes are reserved for the header. It waits only for a paced reader.
func (j *Journal) Append(kind byte, frame []byte) {
	httpwire.PutHeader(frame, kind)
	j.writing.Lock()
	defer j.writing.Unlock()
	if j.appendToTail(frame) || j.flush() && j.put(frame, j.end, j.end+payload(frame)) {
		return
	}
	j.keepUnstored(frame)
}

func payload(frame []byte) int64 { return int64(len(frame) - httpwire.FrameHeader) }

// appendToTail adds a small frame to the tail if no file is open.
func (j *Journal) appendToTail(frame []byte) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.active != nil || len(j.tail)+len(frame) > maxTail {
		return false
	}
	if len(j.tail) == 0 {
		j.tailFirst = j.end
	}
	if !j.timed {
		j.timed = true
		time.AfterFunc(tailDelay, j.Flush)
	}
	j.tail = append(j.tail, frame...)
	j.end += payload(frame)
	j.wake()
	return true
}

// Flush writes the tail to a file.
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

// park keeps the tail of a finished process in memory, while the total is small. mu is held.
func (j *Journal) park() {
	if n := int64(len(j.tail)); n > 0 && !j.parked {
		if j.parked = j.store.parked.Add(n) <= maxParked; !j.parked {
			j.store.parked.Add(-n)
			j.tail = nil
		}
	}
}

// unpark is called before the tail is dropped. mu is held.
func (j *Journal) unpark() {
	if j.parked {
		j.parked = false
		j.store.parked.Add(-int64(len(j.tail)))
	}
}

// TryFlush is Flush, unless another goroutine is writing.
func (j *Journal) TryFlush() {
	if j.writing.TryLock() {
		defer j.writing.Unlock()
		j.flush()
	}
}

// flush implements Flush. writing is held: only its holder changes end and tail.
func (j *Journal) flush() bool {
	return len(j.tail) == 0 || j.put(j.tail, j.tailFirst, j.end)
}

// put writes frames to a file. On a full disk it drops older output until they fit: segments are small after a full
// disk, so one large frame takes the place of many. It gives up if that does not help, because other programs fill the
// disk.
func (j *Journal) put(frames []byte, first, end int64) bool {
	const tries = 4
	if !j.enforceBounds(int64(len(frames))) {
		return false
	}
	for try, freed := 0, int64(0); try < tries || freed < 2*int64(len(frames)); try++ {
		if iolimit.Do(func() error { return j.write(frames, first, end) }) == nil {
			return true
		}
		j.mu.Lock()
		j.seal()
		j.small = max(j.bytes/16, minSegmentSize) // so that the next drop does not take everything
		j.mu.Unlock()
		n, dropped := j.store.FreeSpace(j)
		if !dropped {
			break
		}
		freed += n
	}
	return false
}

// enforceBounds drops output beyond the bounds of the process and the sandbox. AwaitCapacity enforces the bound of a
// paced reader.
func (j *Journal) enforceBounds(n int64) bool {
	for {
		j.mu.Lock()
		over := j.bytes+n > j.bound || len(j.segments) >= maxSegments
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

// write appends frames to the active segment, or to a new one, and publishes them only after the write succeeded.
func (j *Journal) write(frames []byte, first, end int64) error {
	g, err := j.writableSegment(first, int64(len(frames)))
	if err == nil {
		err = writeAt(g.fd, frames, g.size)
	}
	if err == nil && g.base != 0 {
		err = g.writeEndMark(g.size + int64(len(frames)))
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
		j.removeEmpty(g)
	}
	return err
}

// publish adds n bytes of frames to a segment. If the segment was dropped meanwhile, they count as missing.
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

// removeEmpty removes a segment after its first write failed. mu is held.
func (j *Journal) removeEmpty(g *segment) {
	if g != nil && g.size == 0 && !g.gone {
		j.drop(g)
		_ = j.store.unlink(g.name)
	}
}

// writableSegment returns the segment to write to, with one more user.
func (j *Journal) writableSegment(first, n int64) (*segment, error) {
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

// size returns the target size of the active segment. mu is held.
func (j *Journal) size() int64 {
	if j.small >= j.piece {
		j.small = 0
	}
	if j.small > 0 {
		return j.small
	}
	return j.piece
}

// keepUnstored takes a frame that does not fit on the disk: a paced reader gets it from memory; without one, only the
// last bytes are kept.
func (j *Journal) keepUnstored(frame []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	start := j.end
	j.end += payload(frame)
	if j.pace == nil {
		if cut := len(frame) - maxTail; cut > 0 {
			frame[cut] = frame[0]
			frame = frame[cut:]
			httpwire.PutHeader(frame, frame[0])
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

// discard deletes the file of a dropped segment.
func (s *Store) discard(g *segment) {
	s.bytes.Add(-g.held)
	_ = iolimit.Do(func() error { return s.unlink(g.name) })
}
