// Package journal records the output of processes: bounded files of frames on the sandbox's own disk, the oldest
// dropped first.
//
// Offsets count the bytes of all streams in their order of arrival. A journal is a list of segments, files of frames as
// on the wire, a sixteenth of the bound each, and a tail in memory of at most 4 KiB: a command that prints little needs
// no file for 50 ms, a silent one never does. Bounds count bytes of files: 64 MiB per process, or as requested, and 512
// MiB per sandbox, taken from finished processes first and then from the largest. On a full disk the journal itself or
// that of a finished process, whichever has more, loses its oldest bytes until the new ones fit; only bytes that still
// do not fit count as missing, and a paced reader gets them from memory.
//
// Root inside owns that disk, so nothing there is trusted. Files are created with O_EXCL and found again by device and
// inode, links are never followed, and a vanished directory is made again. A reader checks each frame header before the
// host sees it; a changed segment counts as missing.
package journal

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"skerry/keeper/internal/linux"
)

// Dir holds the journals of a sandbox.
const Dir = "/var/lib/skerry/processes"

// Default bounds in bytes of files.
const (
	ProcessBound = 64 << 20
	SandboxBound = 512 << 20
	minBound     = 64 << 10
)

// Store holds all journals of a sandbox.
type Store struct {
	path   string
	dir    atomic.Int32 // fd; -1: not open
	bytes  atomic.Int64 // in files
	parked atomic.Int64 // bytes in memory, of finished processes

	mu       sync.Mutex // taken before a journal's mu
	process  int64
	sandbox  int64
	journals []*Journal
}

// NewStore returns a store; the directory is created when first needed.
func NewStore(path string) *Store {
	s := &Store{path: path, process: ProcessBound, sandbox: SandboxBound}
	s.dir.Store(-1)
	return s
}

// SetBounds sets the bound of each process that starts later and of all processes together; 0 selects the default.
func (s *Store) SetBounds(process, sandbox int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process, s.sandbox = ProcessBound, SandboxBound
	if process > 0 {
		s.process = max(process, minBound)
	}
	if sandbox > 0 {
		s.sandbox = max(sandbox, minBound)
	}
}

// New returns the journal of a process. Bound 0 selects the configured one; the bound of the sandbox is the maximum.
func (s *Store) New(id string, bound int64) *Journal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bound <= 0 {
		bound = s.process
	}
	bound = min(max(bound, minBound), s.sandbox)
	j := &Journal{store: s, id: id, bound: bound, piece: min(max(bound/16, minSegmentSize), maxSegmentSize)}
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

// reserve frees n bytes within the sandbox's bound, from finished processes first and then from the largest.
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

// victim returns the journal that loses its oldest bytes next. s.mu is held.
func (s *Store) victim() *Journal {
	var worst *Journal
	var largest int64
	for _, j := range s.journals {
		size, finished := j.droppable()
		if size > 0 && finished {
			return j // the oldest finished process
		}
		if size > largest {
			worst, largest = j, size
		}
	}
	return worst
}

// FreeSpace is called when the disk is full. It drops the oldest segment of a finished process or of the given journal
// (nil: none), whichever has more, and returns the freed bytes.
func (s *Store) FreeSpace(own *Journal) (freed int64, dropped bool) {
	victim, largest := own, int64(0)
	if own != nil {
		largest, _ = own.droppable()
	}
	s.mu.Lock()
	for _, j := range s.journals {
		if size, finished := j.droppable(); finished && size > largest {
			victim, largest = j, size
		}
	}
	s.mu.Unlock()
	if victim == nil {
		return 0, false
	}
	return victim.dropOldest()
}

// create makes a new file and replaces an existing one.
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
		case syscall.ENOENT, syscall.EBADF: // the directory was removed, or does not exist yet
			s.renew(dir)
		case syscall.EINTR:
		default:
			return -1, err
		}
	}
	return -1, err
}

// open opens a file that the keeper made, and no other.
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
