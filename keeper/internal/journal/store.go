// Package journal keeps what processes print: files of frames on the sandbox's own disk, bounded, the oldest dropped first.
//
// Root inside owns that disk. So nothing there is believed: names are opened without following links, a file has to be the
// one that was made here, and what is read is checked frame by frame before the host sees it.
package journal

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"skerry/keeper/internal/linux"
)

// Dir is where journals lie in a sandbox.
const Dir = "/var/lib/skerry/processes"

// Bounds in bytes of files, unless the configuration says otherwise.
const (
	ProcessBound = 64 << 20
	SandboxBound = 512 << 20
	leastBound   = 64 << 10
)

// Store is all journals of a sandbox.
type Store struct {
	path   string
	dir    atomic.Int32 // fd; -1: not open
	bytes  atomic.Int64 // in files
	parked atomic.Int64 // in memory, of finished processes

	mu       sync.Mutex // taken before a journal's
	process  int64
	sandbox  int64
	journals []*Journal
}

// NewStore makes a store; the directory is made with the first byte that needs it.
func NewStore(path string) *Store {
	s := &Store{path: path, process: ProcessBound, sandbox: SandboxBound}
	s.dir.Store(-1)
	return s
}

// SetBounds changes how much is kept of a process (of those that start from now on) and of all of them; 0 is the default.
func (s *Store) SetBounds(process, sandbox int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process, s.sandbox = ProcessBound, SandboxBound
	if process > 0 {
		s.process = max(process, leastBound)
	}
	if sandbox > 0 {
		s.sandbox = max(sandbox, leastBound)
	}
}

// New makes the journal of a process. bound 0 is the configured one; it is never more than a sandbox may have.
func (s *Store) New(id string, bound int64) *Journal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bound <= 0 {
		bound = s.process
	}
	bound = min(max(bound, leastBound), s.sandbox)
	j := &Journal{store: s, id: id, bound: bound, piece: min(max(bound/16, leastSegment), mostSegment)}
	s.journals = append(s.journals, j)
	return j
}

func (s *Store) forget(j *Journal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.journals, j); i >= 0 {
		s.journals = slices.Delete(s.journals, i, i+1)
	}
}

// reserve makes room for n bytes within the sandbox's bound, at the cost of the finished and then of the largest.
func (s *Store) reserve(n int64) bool {
	for {
		s.mu.Lock()
		if s.bytes.Load()+n <= s.sandbox {
			s.mu.Unlock()
			return true
		}
		victim := s.victim()
		s.mu.Unlock()
		if victim == nil {
			return false
		}
		if _, dropped := victim.dropOldest(); !dropped {
			return false
		}
	}
}

// victim is the journal that loses its oldest bytes next. s.mu is held.
func (s *Store) victim() *Journal {
	var worst *Journal
	var most int64
	for _, j := range s.journals {
		size, finished := j.droppable()
		if size > 0 && finished {
			return j // the oldest of them
		}
		if size > most {
			worst, most = j, size
		}
	}
	return worst
}

// MakeRoom is called when the disk is full: the oldest of a finished process goes, or of the one that needs the room (nil:
// none), whichever has more. The disk has so many bytes more then.
func (s *Store) MakeRoom(own *Journal) (freed int64, dropped bool) {
	victim, most := own, int64(0)
	if own != nil {
		most, _ = own.droppable()
	}
	s.mu.Lock()
	for _, j := range s.journals {
		if size, finished := j.droppable(); finished && size > most {
			victim, most = j, size
		}
	}
	s.mu.Unlock()
	if victim == nil {
		return 0, false
	}
	return victim.dropOldest()
}

// create makes a new file, whatever has its name.
func (s *Store) create(name string) (int, error) {
	const flags = syscall.O_RDWR | syscall.O_CREAT | syscall.O_EXCL | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	var fd int
	var err error
	for range 3 {
		dir := s.directory()
		if fd, err = syscall.Openat(dir, name, flags, 0o600); err == nil {
			return fd, nil
		}
		switch err {
		case syscall.EEXIST:
			_ = linux.Unlinkat(dir, name, 0)
		case syscall.ENOENT, syscall.EBADF: // the directory was removed, or was never there
			s.renew(dir)
		case syscall.EINTR:
		default:
			return -1, err
		}
	}
	return -1, err
}

// open finds a file again that was made here.
func (s *Store) open(name string, is fileID) (int, error) {
	const flags = syscall.O_RDONLY | syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_CLOEXEC
	fd, err := syscall.Openat(s.directory(), name, flags, 0)
	if err != nil {
		return -1, err
	}
	if id, err := identify(fd); err != nil || id != is {
		_ = syscall.Close(fd)
		return -1, syscall.ESTALE
	}
	return fd, nil
}

func (s *Store) unlink(name string) error { return linux.Unlinkat(s.directory(), name, 0) }

func (s *Store) directory() int { return int(s.dir.Load()) }
