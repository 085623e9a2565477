package track

import (
	"os"
	"syscall"
	"time"

	"skerry/keeper/internal/inotify"
	"skerry/keeper/internal/match/gitignore"
)

const (
	inotifyMask = syscall.IN_CREATE | syscall.IN_MODIFY | syscall.IN_ATTRIB | syscall.IN_CLOSE_WRITE | syscall.IN_MOVED_FROM |
		syscall.IN_MOVED_TO | syscall.IN_DELETE | syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF | syscall.IN_ONLYDIR |
		syscall.IN_EXCL_UNLINK
	maxDepth = 1024
	maxPath  = 4096 // bytes of a reported path
	maxName  = 255
)

type role byte

const (
	ordinary role = iota
	gitRole       // the project's own .git
	refsRole      // the directories in it that hold refs
)

// node is a directory. Its name and place never change: a moved directory is forgotten and found again at its new
// place.
type node struct {
	wd     int // -1: not watched
	name   string
	above  *node // nil: the root, or the project's .git
	below  map[string]*node
	marks  map[string]*mark
	linked map[string]int64 // files with several names, by ctime
	chain  *gitignore.Chain
	depth  int
	role   role
}

// mark is a changed name.
type mark struct {
	seq     int64
	tree    bool // a new directory: everything below it counts as new
	written bool // its content has or may have changed
}

func child(above *node, name string) *node {
	return &node{wd: -1, name: name, above: above, depth: above.depth + 1, role: above.role}
}

func (n *node) path() string {
	if n.above == nil {
		return n.name
	}
	return join(n.above.path(), n.name)
}

func join(above, name string) string {
	if above == "" {
		return name
	}
	return above + "/" + name
}

// watchSet is one inotify instance and its watches. It is closed as a whole.
type watchSet struct {
	file    *os.File
	inotify int // the fd of file; os.File.Fd would take it off the poller
	nodes   map[int]*node
	top     *node
	refs    []*node        // directories of the project's .git
	dirty   map[*node]bool // nodes with marks
	marked  int            // number of marks
	linked  map[*node]bool // nodes with files that have several names
	links   int            // number of such files
	closed  bool
}

func open() (*watchSet, error) {
	fd, err := inotify.Open()
	if err != nil {
		return nil, err
	}
	return &watchSet{
		file: os.NewFile(uintptr(fd), "inotify"), inotify: fd, nodes: map[int]*node{}, dirty: map[*node]bool{},
		linked: map[*node]bool{},
	}, nil
}

// close ends the watches. Its goroutine closes the fd, which may be in use.
func (w *watchSet) close() {
	if !w.closed {
		w.closed = true
		w.nodes, w.top, w.refs, w.dirty, w.linked = nil, nil, nil, nil, nil
		_ = w.file.SetReadDeadline(time.Now())
	}
}

// knows reports whether a directory is still where it was found.
func (w *watchSet) knows(n *node) bool { return n.wd >= 0 && w.nodes[n.wd] == n }

// place watches an open directory. A directory that is known under another name has moved, and its notices are still to
// come: it is forgotten there.
func (w *watchSet) place(n *node, fd int) (*node, error) {
	wd, err := inotify.Watch(w.inotify, fd, inotifyMask)
	if err != nil {
		return nil, err
	}
	if old := w.nodes[wd]; old != nil {
		if old.above == n.above && old.name == n.name && old.role == n.role {
			return old, nil
		}
		w.forget(old)
		if wd, err = inotify.Watch(w.inotify, fd, inotifyMask); err != nil {
			return nil, err
		}
	}
	n.wd = wd
	w.nodes[wd] = n
	if n.above == nil {
		return n, nil
	}
	if old := n.above.below[n.name]; old != nil {
		w.forget(old)
	}
	if n.above.below == nil {
		n.above.below = map[string]*node{}
	}
	n.above.below[n.name] = n
	return n, nil
}

// forget stops watching a directory and everything below it and drops its marks; its own name is marked, or will be.
func (w *watchSet) forget(n *node) {
	for _, one := range n.below {
		w.forget(one)
	}
	if n.above != nil && n.above.below[n.name] == n {
		delete(n.above.below, n.name)
	}
	if w.knows(n) {
		delete(w.nodes, n.wd)
		inotify.Unwatch(w.inotify, n.wd)
	}
	w.marked -= len(n.marks)
	n.marks = nil
	delete(w.dirty, n)
	w.links -= len(n.linked)
	n.linked = nil
	delete(w.linked, n)
}
