package journal

import (
	"fmt"
	"syscall"

	"skerry/keeper/internal/linux"
)

const (
	minSegmentSize = 8 << 10
	maxSegmentSize = 4 << 20
)

// segment is one file of a journal: frames as on the wire. The journal's mu guards all fields.
type segment struct {
	name       string
	first, end int64 // offsets of its output
	size       int64 // bytes of whole frames in the file
	id         fileID
	fd         int  // -1: not open
	users      int  // users of fd and mapping: the writer, readers, and the two below
	pinned     bool // used by a paced reader that has not reached it yet
	mapping    bool // used for later overwriting
	gone       bool
	held       int64   // bytes accounted to the journal
	base       uintptr // address of the mapping, which lasts while it has users; 0: none
	span       int64   // size of the mapping
}

// fileID distinguishes a file from others that may get its name.
type fileID struct{ dev, ino uint64 }

func identify(fd int) (fileID, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return fileID{}, err
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return fileID{}, syscall.ESTALE
	}
	return fileID{uint64(st.Dev), st.Ino}, nil
}

func segmentName(id string, first int64) string { return fmt.Sprintf("%s.%016x", id, first) }

func newSegment(s *Store, id string, first int64) (*segment, error) {
	g := &segment{name: segmentName(id, first), first: first, end: first, users: 1}
	fd, err := s.create(g.name)
	if err != nil {
		return nil, err
	}
	g.fd = fd
	if g.id, err = identify(fd); err != nil {
		_ = syscall.Close(fd)
		return nil, err
	}
	return g, nil
}

// writeAt writes everything or, by truncating the file, nothing.
func writeAt(fd int, data []byte, at int64) error {
	err := linux.WriteAt(fd, data, at)
	if err != nil {
		_ = syscall.Ftruncate(fd, at)
	}
	return err
}

// readAt fills the buffer as far as the file reaches.
func readAt(fd int, buffer []byte, at int64) int {
	done := 0
	for done < len(buffer) {
		n, err := syscall.Pread(fd, buffer[done:], at+int64(done))
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n == 0 {
			break
		}
		done += n
	}
	return done
}

// release drops one user. The journal's mu is held.
func (g *segment) release() {
	if g.users--; g.users > 0 {
		return
	}
	_ = syscall.Close(g.fd)
	g.fd = -1
	if g.base != 0 {
		linux.Unmap(g.base, g.span)
		g.base = 0
	}
}

func (g *segment) stopMapping() {
	if g.mapping {
		g.mapping = false
		g.release()
	}
}

func (g *segment) unpin() {
	if g.pinned {
		g.pinned = false
		g.release()
	}
}
