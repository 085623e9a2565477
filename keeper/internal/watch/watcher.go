// Package watch reports changes below a directory, as visible to one of the sandbox's users.
//
// Each watcher has one inotify instance on the poller and a watch for each directory, placed with the user's rights on
// the fd that was examined.
//
// A new file is reported with its first content (or after 50 ms), writing once it pauses (at most once a second while
// it does not), and the two halves of a move as one event; an unpaired half is a removal or a creation. The order is
// that of the kernel's queue: nothing overtakes a half move.
//
// The disk is ahead of that queue, and a notice names no inode. These rules keep the events exact:
//
//   - A new directory is opened below its parent after a check of the parent's inode: a rename may have led the
//     parent's path elsewhere. Then the directory is examined later, when the notices of the rename are processed.
//   - A directory is not examined while notices about its name are queued: the name may belong to another directory by
//     now. The last of these notices leads to it. A directory that was never examined has no reported entries, so it
//     can be moved and removed like a file.
//   - A new directory is watched first, then read, and then all notices are read from the kernel. The kernel changes a
//     directory and queues the notice under the lock that reading the directory takes. An entry without queued notices
//     is therefore as it was read and is reported as created. Of the notices about another entry all but the last are
//     ignored, and that one too if it is a removal.
//   - A notice from within a directory that is half moved ends the wait for the second half: its path is unknown.
//
// A file that is renamed to the name of another file, as editors and the keeper itself write files, is reported as a
// modification. The notice does not say so: a watcher keeps the hashes of up to 100,000 names of files.
//
// After an overflow of the queue all directories are read again.
//
// A watcher keeps 10,000 events (4 MiB of names) and lives for five minutes without a reader; a sandbox has at most 16.
// The keeper's own temporary files are not reported.
package watch

import (
	"errors"
	"os"
	"syscall"
	"time"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/inotify"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/match/filter"
)

type inode struct{ device, number uint64 }

// Options select the changes to report.
type Options struct {
	User      *accounts.User
	Path      string // absolute
	Recursive bool
	Include   filter.Set
	Exclude   filter.Set
	Heartbeat func() error // called often until the watcher is ready; its error ends the work
}

// Watcher watches one directory. Everything except its ring belongs to the goroutine that reads its notices.
type Watcher struct {
	ID  string
	key string
	ring

	user      *accounts.User
	path      string
	recursive bool
	include   filter.Set
	exclude   filter.Set
	heartbeat func() error // nil: ready

	file     *os.File
	fd       int // the fd of file; os.File.Fd would take it off the poller
	buffer   []byte
	queue    queue
	stop     chan struct{}
	started  bool
	identity inode
	root     *node
	nodes    map[int]*node
	known    int // the files that its nodes know
	missed   []missed
	moved    bool // a directory was moved since the last attempt to find the missed ones
	held     []*held
	byPath   map[string]*held
	gone     bool // the root is gone

	readers int // guarded by the set
	timer   *time.Timer
}

// open starts a watcher; it returns when all directories are watched.
func open(options Options) (*Watcher, error) {
	w, err := prepare(options)
	if err != nil {
		return nil, err
	}
	go w.run()
	return w, nil
}

// prepare returns a watcher that watches all directories and processes no notices yet.
func prepare(options Options) (*Watcher, error) {
	fd, err := inotify.Open()
	if err != nil {
		return nil, ErrNoInstances
	}
	w := &Watcher{
		user: options.User, path: options.Path, recursive: options.Recursive, include: options.Include, exclude: options.Exclude,
		file: os.NewFile(uintptr(fd), "inotify"), fd: fd, buffer: make([]byte, 16<<10), stop: make(chan struct{}),
		nodes: map[int]*node{}, byPath: map[string]*held{}, heartbeat: options.Heartbeat,
	}
	if err := w.enter(nil, "", false); err != nil {
		_ = w.file.Close()
		return nil, err
	}
	w.findRoot()
	w.started, w.heartbeat = true, nil
	return w, nil
}

// close ends a watcher. Its goroutine closes the fd, which may be in use.
func (w *Watcher) close() {
	close(w.stop)
	_ = w.file.SetReadDeadline(time.Now())
}

// run reads notices until the watcher is closed or its directory is gone.
func (w *Watcher) run() {
	defer w.ring.end()
	defer w.file.Close()
	w.process() // notices that the first scan has read
	for !w.gone {
		_ = w.file.SetReadDeadline(w.nextDue()) // a zero time means none: an idle watcher causes no wake-ups
		if w.stopped() {
			return
		}
		n, err := w.file.Read(w.buffer)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		inotify.Each(w.buffer[:max(n, 0)], w.queue.add)
		w.process()
	}
}

// process turns all queued notices into events.
func (w *Watcher) process() {
	for !w.gone && !w.stopped() {
		for range 256 {
			w.processNext()
		}
		w.release(time.Now())
		if w.queue.empty() && linux.Pending(w.fd) == 0 {
			w.lookAgain() // it may read further notices
		}
		if w.queue.empty() {
			return
		}
	}
}

func (w *Watcher) processNext() {
	n, skip := w.queue.next()
	switch {
	case n == nil:
	case skip:
		w.skip(n)
	default:
		w.take(n)
	}
}

func (w *Watcher) stopped() bool {
	select {
	case <-w.stop:
		return true
	default:
		return false
	}
}

// skip ignores a notice that a scan covers. A move to an entry of that scan is a removal at its old place.
func (w *Watcher) skip(n *inotify.Notice) {
	if from := w.takeMove(n.Cookie); from != nil && n.Has(syscall.IN_MOVED_TO) {
		w.decide(from)
	}
}

// take turns one notice into events.
func (w *Watcher) take(n *inotify.Notice) {
	if n.Has(syscall.IN_Q_OVERFLOW) {
		w.overflow()
		return
	}
	if here := w.nodes[n.WD]; here != nil && n.Name != "" {
		w.endHalfMoves(here)
	}
	here := w.nodes[n.WD]
	if here == nil || w.gone {
		return
	}
	switch {
	case n.Has(rootGone):
		if here == w.root {
			w.rootRemoved()
		}
	case n.Has(syscall.IN_IGNORED):
		delete(w.nodes, n.WD)
	case n.Name == "":
	case n.Has(syscall.IN_CREATE):
		w.created(here, n)
	case n.Has(syscall.IN_MODIFY | syscall.IN_ATTRIB):
		w.modified(here, n)
	case n.Has(syscall.IN_CLOSE_WRITE):
		w.closed(here, n)
	case n.Has(syscall.IN_MOVED_FROM):
		w.moved = w.moved || n.Directory()
		w.movedFrom(here, n)
	case n.Has(syscall.IN_MOVED_TO):
		w.movedTo(here, n)
	case n.Has(syscall.IN_DELETE):
		w.removed(here, n)
	}
}

// rootRemoved ends the watcher of a removed directory.
func (w *Watcher) rootRemoved() {
	w.settleAll()
	w.releaseAll()
	w.ring.addLast(Event{Type: "removed", Directory: true})
	w.gone = true
}

// overflow reads all directories again after notices were lost and then reports the loss: a reader that looks again
// sees all earlier changes.
func (w *Watcher) overflow() {
	w.settleAll()
	w.releaseAll()
	w.missed = nil
	w.forget(w.root)
	w.explore(nil, "", false)
	w.findRoot()
	if !w.gone {
		w.ring.add(Event{Type: "overflow", Directory: true})
	}
}

func (w *Watcher) findRoot() {
	for _, n := range w.nodes {
		if n.above == nil {
			w.root = n
		}
	}
}

// explore watches a new directory. If that fails, changes will be missed, and it reports a loss.
func (w *Watcher) explore(above *node, name string, report bool) {
	switch err := w.enter(above, name, report); {
	case err == errGone:
		w.rootRemoved()
	case err != nil:
		w.ring.add(Event{Type: "overflow", Directory: true})
	}
}
