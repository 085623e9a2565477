package journal

import (
	"errors"
	"syscall"

	"skerry/keeper/internal/httpwire"
	"skerry/keeper/internal/iolimit"
	"skerry/keeper/internal/linux"
)

// A journal with much output maps its segments, and the program's pipe is read directly into them. The next segment
// overwrites the dropped one, file and mapping, so that the file system's work for a page (on btrfs five times the cost
// of copying it: 2 s per GiB, 0.4 s when overwritten through a mapping) is done once. Only the kernel touches a
// mapping, in read and writev: if root inside has truncated the file, or the disk is full, a system call fails with
// EFAULT, whereas an access by the keeper would be a SIGBUS and end PID 1.

// inFlight is more than a socket holds. A paced reader is served by sendfile, which sends the file's own pages: they
// must not be overwritten before the host has read them. Other readers may be arbitrarily late and get copies.
const inFlight = 2 << 20

// minMappedSegment is the minimum size of a mapped segment.
const minMappedSegment = 1 << 20

// ErrNotMapped means that the caller must read into its own memory, because no mapped segment is available.
var ErrNotMapped = errors.New("the journal has no mapped segments")

// StartMapping requests mapped segments.
func (j *Journal) StartMapping() {
	j.writing.Lock()
	defer j.writing.Unlock()
	j.mapping.Store(j.piece >= minMappedSegment)
}

// StopMapping ends the use of mapped segments.
func (j *Journal) StopMapping() {
	j.writing.Lock()
	defer j.writing.Unlock()
	j.stopMapping()
}

// stopMapping truncates the files to their contents and unmaps them as soon as their readers are done. writing is held.
func (j *Journal) stopMapping() {
	if !j.mapping.Swap(false) {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seal() // new output must not go to a file that may be damaged
	for _, g := range j.segments {
		if g.mapping {
			g.shorten()
			j.account(g, g.size)
			g.stopMapping()
		}
	}
}

// shorten cuts off the unwritten part. It never extends a file that root inside has truncated: the extension would be
// zeros.
func (g *segment) shorten() {
	var st syscall.Stat_t
	if syscall.Fstat(g.fd, &st) == nil && st.Size > g.size {
		_ = syscall.Ftruncate(g.fd, g.size)
	}
}

// Pull reads once from a pipe into the journal. The error is that of the read, or ErrNotMapped if nothing was read.
func (j *Journal) Pull(kind byte, pipe, limit int) (n int, err error) {
	j.writing.Lock()
	defer j.writing.Unlock()
	if !j.mapping.Load() || !j.flush() {
		j.stopMapping()
		return 0, ErrNotMapped
	}
	g, err := j.mapped(int64(limit))
	if err != nil {
		j.stopMapping()
		return 0, ErrNotMapped
	}
	at := g.size + httpwire.FrameHeader
	err = iolimit.Do(func() (err error) {
		n, err = linux.ReadInto(pipe, g.base+uintptr(at), limit)
		return err
	})
	if n > 0 && iolimit.Do(func() error { return g.writeFrame(kind, n) }) != nil {
		j.recoverBytes(kind, g, n)
	} else if n > 0 {
		j.publish(g, httpwire.FrameHeader+int64(n), j.end+int64(n))
	}
	j.mu.Lock()
	g.release()
	j.mu.Unlock()
	if err == syscall.EFAULT { // no space for the page, or the file was truncated
		j.stopMapping()
		err = ErrNotMapped
	}
	return n, err
}

// writeFrame turns the bytes into a frame. The header is written last, after an end mark behind the frame: if the
// sandbox ends here, older contents of the file are never taken for output.
func (g *segment) writeFrame(kind byte, n int) error {
	if err := g.writeEndMark(g.size + httpwire.FrameHeader + int64(n)); err != nil {
		return err
	}
	var head [httpwire.FrameHeader]byte
	httpwire.PutHeaderSize(head[:], kind, n)
	return linux.WriteAt(g.fd, head[:], g.size)
}

// writeEndMark marks the end of the written frames with a zero.
func (g *segment) writeEndMark(at int64) error {
	var none [httpwire.FrameHeader]byte
	return linux.WriteAt(g.fd, none[:max(0, min(httpwire.FrameHeader, g.span-at))], at)
}

// recoverBytes saves bytes that were read but could not be framed.
func (j *Journal) recoverBytes(kind byte, g *segment, n int) {
	frame := make([]byte, httpwire.FrameHeader+n)
	got := readAt(g.fd, frame[httpwire.FrameHeader:], g.size+httpwire.FrameHeader)
	j.stopMapping()
	if got < n {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.end += int64(n) // lost
		j.wake()
		return
	}
	httpwire.PutHeader(frame, kind)
	if !j.put(frame, j.end, j.end+int64(n)) {
		j.keepUnstored(frame)
	}
}

// mapped returns the active segment with one more user and with capacity for a frame and the end mark.
func (j *Journal) mapped(limit int64) (*segment, error) {
	j.mu.Lock()
	g := j.active
	if g == nil || g.base == 0 || g.size+limit+2*httpwire.FrameHeader > g.span {
		j.seal()
		g = nil
	} else {
		g.users++
	}
	j.mu.Unlock()
	if g != nil {
		return g, nil
	}
	var err error
	if g = j.reuseOldest(); g == nil {
		if !j.enforceBounds(j.piece) {
			return nil, syscall.ENOSPC
		}
		err = iolimit.Do(func() (err error) {
			g, err = newMapped(j.store, j.id, j.end, j.piece)
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	g.users += 2 // the journal and the caller; its being mapped counts as a third
	j.account(g, g.span)
	j.segments = append(j.segments, g)
	j.active = g
	return g, nil
}

// reuseOldest takes the oldest segment for overwriting, if it must be dropped, is mapped, and has no readers.
func (j *Journal) reuseOldest() *segment {
	j.mu.Lock()
	if len(j.segments) == 0 || j.bytes+j.piece <= j.bound || j.pace != nil && j.segments[0].end+inFlight > j.pace.offset {
		j.mu.Unlock()
		return nil
	}
	old := j.segments[0]
	if !old.mapping || old.users != 1 || old.span != j.piece {
		j.mu.Unlock()
		return nil
	}
	old.users++ // drop releases one
	j.drop(old)
	j.mu.Unlock()
	j.store.bytes.Add(-old.held)
	g := &segment{
		name: segmentName(j.id, j.end), first: j.end, end: j.end, id: old.id, fd: old.fd, base: old.base, span: old.span, mapping: true,
		users: 1,
	}
	dir := j.store.directory()
	if iolimit.Do(func() error { return syscall.Renameat(dir, old.name, dir, g.name) }) != nil {
		_ = iolimit.Do(func() error { return j.store.unlink(old.name) })
		g.release()
		return nil
	}
	return g
}

func newMapped(s *Store, id string, first, span int64) (*segment, error) {
	g, err := newSegment(s, id, first)
	if err != nil {
		return nil, err
	}
	if err = syscall.Ftruncate(g.fd, span); err == nil {
		g.base, err = linux.MapShared(g.fd, span)
	}
	if err != nil {
		_ = s.unlink(g.name)
		g.release()
		return nil, err
	}
	g.span, g.mapping = span, true
	return g, nil
}
