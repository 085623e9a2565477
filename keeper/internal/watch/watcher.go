// Package watch tells of changes below a directory, as one of the sandbox's users may see them.
package watch

import (
	"errors"
	"os"
	"syscall"
	"time"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/inotify"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/pattern"
)

type inode struct{ device, number uint64 }

// Wish is what is to be watched, and as whom.
type Wish struct {
	User      *accounts.User
	Path      string // absolute
	Recursive bool
	Include   pattern.Set
	Exclude   pattern.Set
	Pulse     func() error // called often until it stands; its error ends the work
}

// Watcher watches one directory. All but its ring belongs to the goroutine that reads its notices.
type Watcher struct {
	ID  string
	key string
	ring

	user      *accounts.User
	path      string
	recursive bool
	include   pattern.Set
	exclude   pattern.Set
	pulse     func() error // nil: it stands

	file      *os.File
	fd        int // the same; os.File.Fd would take it off the poller
	stop      chan struct{}
	started   bool
	identity  inode
	root      *node
	nodes     map[int]*node
	scanned   []*node         // that have names in told
	toldNames int             // how many
	overtaken map[uint32]bool // moves of what a scan has found already
	missed    []missed
	held      []*held
	byPath    map[string]*held
	gone      bool // the root
	fetched   int  // bytes read from the queue
	taken     int  // of those, how many are made events of

	readers int // the set's
	timer   *time.Timer
}

func open(wish Wish) (*Watcher, error) {
	fd, err := inotify.Open()
	if err != nil {
		return nil, ErrNoInstances
	}
	w := &Watcher{
		user: wish.User, path: wish.Path, recursive: wish.Recursive, include: wish.Include, exclude: wish.Exclude,
		file: os.NewFile(uintptr(fd), "inotify"), fd: fd, stop: make(chan struct{}), nodes: map[int]*node{},
		byPath: map[string]*held{}, overtaken: map[uint32]bool{}, pulse: wish.Pulse,
	}
	if err := w.enter(nil, "", false); err != nil {
		_ = w.file.Close()
		return nil, err
	}
	w.findRoot()
	w.started, w.pulse = true, nil
	go w.run()
	return w, nil
}

// close ends a watcher. Its own goroutine closes its fd, which it may just be using.
func (w *Watcher) close() {
	close(w.stop)
	_ = w.file.SetReadDeadline(time.Now())
}

func (w *Watcher) run() {
	defer w.ring.end()
	defer w.file.Close()
	buffer := make([]byte, 16<<10)
	for !w.gone {
		_ = w.file.SetReadDeadline(w.nextDue()) // none: an idle watcher costs no wake-ups
		select {
		case <-w.stop:
			return
		default:
		}
		n, err := w.file.Read(buffer)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		w.fetched += max(n, 0)
		inotify.Each(buffer[:max(n, 0)], w.take)
		w.release(time.Now())
		if linux.Pending(w.fd) == 0 { // whatever a scan told, its notices are all read
			for _, n := range w.scanned {
				n.told, n.left = nil, nil
			}
			w.scanned, w.toldNames = nil, 0
			clear(w.overtaken)
			w.lookAgain()
		}
	}
}

// take makes events of one notice.
func (w *Watcher) take(n *inotify.Notice) {
	w.taken += n.Size
	if n.Has(syscall.IN_Q_OVERFLOW) {
		w.overflow()
		return
	}
	here := w.nodes[n.WD]
	if here == nil || w.gone {
		return
	}
	switch {
	case n.Has(rootGone):
		if here == w.root {
			w.vanish()
		}
	case n.Has(syscall.IN_IGNORED):
		delete(w.nodes, n.WD)
	case n.Name == "":
	case n.Has(syscall.IN_CREATE):
		w.created(here, n)
	case n.Has(syscall.IN_MODIFY | syscall.IN_ATTRIB):
		w.modified(join(here.path(), n.Name), n)
	case n.Has(syscall.IN_CLOSE_WRITE):
		w.closed(join(here.path(), n.Name))
	case n.Has(syscall.IN_MOVED_FROM):
		w.movedFrom(here, n)
	case n.Has(syscall.IN_MOVED_TO):
		w.movedTo(here, n)
	case n.Has(syscall.IN_DELETE):
		w.removed(here, n)
	}
}

// vanish ends a watcher whose directory is gone.
func (w *Watcher) vanish() {
	w.settleAll()
	w.releaseAll()
	w.ring.addLast(Event{Type: "removed", Directory: true})
	w.gone = true
}

// overflow finds all directories anew after notices were lost, and then says so: what happened before that, whoever looks
// again sees.
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

// explore watches a directory that came later. Where that is not possible, changes will be missed, and that is told.
func (w *Watcher) explore(above *node, name string, tell bool) {
	switch err := w.enter(above, name, tell); {
	case err == errGone:
		w.vanish()
	case err != nil:
		w.ring.add(Event{Type: "overflow", Directory: true})
	}
}
