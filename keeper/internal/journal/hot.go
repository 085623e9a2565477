package journal

import (
	"errors"
	"syscall"

	"skerry/keeper/internal/disk"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/wire"
)

// A hot journal is one whose program prints much. Its segments are mapped, and the program's pipe is read straight into them;
// one that is dropped is written over by the next, file and mapping, so that the file system's work for a page, which on btrfs
// is five times that of copying it, is done once. Only the kernel touches a mapping: where root inside has cut the file short,
// a system call fails, and an access of ours would end PID 1.

// inFlight is more than a socket holds. A paced reader is served by sendfile, whose pages are the file's own: they must not be
// written over before the host has read them. Other readers may be any time behind; they are given copies.
const inFlight = 2 << 20

// leastHot is how large a segment has to be for that.
const leastHot = 1 << 20

// ErrCold says that there is no mapped segment to read into: the caller reads into memory of its own.
var ErrCold = errors.New("the journal is not hot")

// Heat asks for mapped segments.
func (j *Journal) Heat() {
	j.writing.Lock()
	defer j.writing.Unlock()
	j.hot.Store(j.piece >= leastHot)
}

// Cool ends it.
func (j *Journal) Cool() {
	j.writing.Lock()
	defer j.writing.Unlock()
	j.cool()
}

// cool cuts the files to what is in them and lets the mappings go, as soon as their readers do. writing is held.
func (j *Journal) cool() {
	if !j.hot.Swap(false) {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seal() // what comes now does not go where something may be wrong
	for _, g := range j.segments {
		if g.hot {
			g.shorten()
			j.account(g, g.size)
			g.cool()
		}
	}
}

// shorten cuts off what was never written to. A file that root inside has cut is not made longer again: it would be zeros.
func (g *segment) shorten() {
	var st syscall.Stat_t
	if syscall.Fstat(g.fd, &st) == nil && st.Size > g.size {
		_ = syscall.Ftruncate(g.fd, g.size)
	}
}

// Pull reads a pipe into the journal, once. The error is the read's own, or ErrCold, and then nothing was read.
func (j *Journal) Pull(kind byte, pipe, most int) (n int, err error) {
	j.writing.Lock()
	defer j.writing.Unlock()
	if !j.hot.Load() || !j.flush() {
		j.cool()
		return 0, ErrCold
	}
	g, err := j.mapped(int64(most))
	if err != nil {
		j.cool()
		return 0, ErrCold
	}
	at := g.size + wire.FrameHead
	err = disk.Do(func() (err error) {
		n, err = linux.ReadInto(pipe, g.base+uintptr(at), most)
		return err
	})
	if n > 0 && disk.Do(func() error { return g.enclose(kind, n) }) != nil {
		j.rescue(kind, g, n)
	} else if n > 0 {
		j.publish(g, wire.FrameHead+int64(n), j.end+int64(n))
	}
	j.mu.Lock()
	g.release()
	j.mu.Unlock()
	if err == syscall.EFAULT { // no room on the disk for the page, or no file any more
		j.cool()
		err = ErrCold
	}
	return n, err
}

// enclose makes a frame of what was read. The head comes last, and behind the frame stands what is none: should the sandbox
// end here, nothing of what the file held before is taken for output.
func (g *segment) enclose(kind byte, n int) error {
	if err := g.conclude(g.size + wire.FrameHead + int64(n)); err != nil {
		return err
	}
	var head [wire.FrameHead]byte
	wire.PutHeadOf(head[:], kind, n)
	return linux.WriteAt(g.fd, head[:], g.size)
}

// conclude marks the end of what is written.
func (g *segment) conclude(at int64) error {
	var none [wire.FrameHead]byte
	return linux.WriteAt(g.fd, none[:max(0, min(wire.FrameHead, g.span-at))], at)
}

// rescue takes bytes back that were read but could not be made a frame.
func (j *Journal) rescue(kind byte, g *segment, n int) {
	frame := make([]byte, wire.FrameHead+n)
	got := readAt(g.fd, frame[wire.FrameHead:], g.size+wire.FrameHead)
	j.cool()
	if got < n {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.end += int64(n) // gone
		j.wake()
		return
	}
	wire.PutHead(frame, kind)
	if !j.put(frame, j.end, j.end+int64(n)) {
		j.homeless(frame)
	}
}

// mapped returns the active segment, in use once more, with room for a frame and the end behind it.
func (j *Journal) mapped(most int64) (*segment, error) {
	j.mu.Lock()
	g := j.active
	if g == nil || g.base == 0 || g.size+most+2*wire.FrameHead > g.span {
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
	if g = j.again(); g == nil {
		if !j.within(j.piece) {
			return nil, syscall.ENOSPC
		}
		err = disk.Do(func() (err error) {
			g, err = newMapped(j.store, j.id, j.end, j.piece)
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	g.users += 2 // the journal's, and the caller's; it has one because it is hot
	j.account(g, g.span)
	j.segments = append(j.segments, g)
	j.active = g
	return g, nil
}

// again takes the oldest segment to be written over, if it has to go, is mapped, and nobody reads it.
func (j *Journal) again() *segment {
	j.mu.Lock()
	if len(j.segments) == 0 || j.bytes+j.piece <= j.bound || j.pace != nil && j.segments[0].end+inFlight > j.pace.offset {
		j.mu.Unlock()
		return nil
	}
	old := j.segments[0]
	if !old.hot || old.users != 1 || old.span != j.piece {
		j.mu.Unlock()
		return nil
	}
	old.users++ // drop gives one up
	j.drop(old)
	j.mu.Unlock()
	j.store.bytes.Add(-old.held)
	g := &segment{
		name: segmentName(j.id, j.end), first: j.end, end: j.end, id: old.id, fd: old.fd, base: old.base, span: old.span, hot: true,
		users: 1,
	}
	dir := j.store.directory()
	if disk.Do(func() error { return syscall.Renameat(dir, old.name, dir, g.name) }) != nil {
		_ = disk.Do(func() error { return j.store.unlink(old.name) })
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
	g.span, g.hot = span, true
	return g, nil
}
