// Package track finds what changed below a directory since somebody last looked, by watching its directories, and reads
// it. It tells what is there; what counts is the host's to judge.
package track

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"skerry/keeper/internal/ignore"
	"skerry/keeper/internal/linux"
)

const (
	maxMarks  = 20_000 // names that changed; with more of them, all is looked at
	breath    = 2 * time.Millisecond
	directory = syscall.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NONBLOCK | syscall.O_NOFOLLOW
)

// Errors of a tracker.
var (
	ErrUnknown = errors.New("there is no such tracker")
	ErrVirtual = errors.New("nobody wrote the files there")
	errSlow    = errors.New("it is too large to be read in time")
	ErrTooMany = errors.New("there are more than 500,000 entries, 65,536 directories or 64 MiB of paths in it")
)

type inode struct{ device, number uint64 }

// Wish is what is to be tracked.
type Wish struct {
	Root  string // absolute
	Rules *ignore.Rules
	Large int64 // files above it are told by their hash
}

// Tracker tracks one directory. There is one in a sandbox.
type Tracker struct {
	ID    string
	large int64
	root  string // no link leads to it
	rules *ignore.Rules
	turn  chan struct{} // whoever scans has it

	mu       sync.Mutex
	eye      *eye // nil: nothing is watched
	ended    bool
	identity inode // of the root
	seq      int64 // of the last thing that happened
	lost     int64 // what happened before it is not known one by one
	git      int64 // when refs changed last
	gitStale bool  // its directories have to be looked at again
	gitBlind bool  // they can't be watched
	blind    bool  // there are no watches to be had
	stirred  time.Time
	waiters  int
	waiting  chan struct{} // closed when something happens, if somebody waits
	relieved chan struct{} // closed when somebody else begins to wait
}

// Begin tracks a directory. Nothing is watched before the first scan.
func Begin(wish Wish) (*Tracker, error) {
	fd, err := linux.OpenBelow(wish.Root, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = syscall.Close(fd) }()
	if linux.Virtual(fd) {
		return nil, ErrVirtual
	}
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return nil, err
	}
	var id [8]byte
	_, _ = rand.Read(id[:])
	t := &Tracker{
		ID: hex.EncodeToString(id[:]), large: wish.Large, root: real, rules: wish.Rules, turn: make(chan struct{}, 1),
		waiting: make(chan struct{}),
	}
	t.lose()
	return t, nil
}

// End ends it; a scan or a wait that is under way ends too.
func (t *Tracker) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	t.giveUp()
	t.stir()
}

// openRoot opens the directory, if there still is one; links have no part in its path.
func (t *Tracker) openRoot() (int, inode, error) {
	fd, err := linux.OpenUnlinked(t.root, directory)
	if err != nil {
		return -1, inode{}, err
	}
	var st syscall.Stat_t
	if err = syscall.Fstat(fd, &st); err == nil && linux.Virtual(fd) {
		err = ErrVirtual
	}
	if err != nil {
		_ = syscall.Close(fd)
		return -1, inode{}, err
	}
	return fd, inode{st.Dev, st.Ino}, nil
}

// lose is for when it is no longer known what happened one by one: the next scan looks at everything. Until then nothing
// is watched, so that a storm of changes costs nothing.
func (t *Tracker) lose() {
	t.giveUp()
	t.seq++
	t.lost = t.seq
	t.stir()
}

// blinded is for when there is nothing that can be watched: somebody has to look again, and not all the time.
func (t *Tracker) blinded() {
	t.lose()
	t.blind = true
}

func (t *Tracker) giveUp() {
	if t.eye != nil {
		t.eye.close()
		t.eye = nil
	}
}

// stir tells whoever waits.
func (t *Tracker) stir() {
	t.stirred = time.Now()
	if t.waiters > 0 {
		close(t.waiting)
		t.waiting, t.waiters = make(chan struct{}), 0
	}
}

// Root is the tracked directory.
func (t *Tracker) Root() string { return t.root }
