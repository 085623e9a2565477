package track

import (
	"os"
	"syscall"
	"time"

	"skerry/keeper/internal/ignore"
	"skerry/keeper/internal/inotify"
)

const (
	wanted = syscall.IN_CREATE | syscall.IN_MODIFY | syscall.IN_ATTRIB | syscall.IN_CLOSE_WRITE | syscall.IN_MOVED_FROM |
		syscall.IN_MOVED_TO | syscall.IN_DELETE | syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF | syscall.IN_ONLYDIR |
		syscall.IN_EXCL_UNLINK
	deepest  = 1024
	longest  = 4096 // bytes of a path that are told
	longName = 255
)

type role byte

const (
	ordinary role = iota
	ofGit         // the project's own .git
	ofRefs        // what lies in it and tells of refs
)

// node is a directory. Its name and place never change: one that is moved is forgotten, and found anew where it went.
type node struct {
	wd     int // -1: not watched
	name   string
	above  *node // nil: the root, or the project's .git
	below  map[string]*node
	marks  map[string]*mark
	linked map[string]int64 // files with several names, and their ctimes
	chain  *ignore.Chain
	depth  int
	role   role
}

// mark is a name that something happened to.
type mark struct {
	seq     int64
	tree    bool // a directory that came: all below it counts as new
	written bool // its content was, or may have been
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

// eye is one inotify instance, and what it watches. It is given up as a whole.
type eye struct {
	file    *os.File
	inotify int // the same; os.File.Fd would take it off the poller
	nodes   map[int]*node
	top     *node
	refs    []*node        // of the project's .git
	dirty   map[*node]bool // those with marks
	marked  int            // how many marks there are
	linked  map[*node]bool // those with files that have several names
	links   int            // how many such files
	closed  bool
}

func open() (*eye, error) {
	fd, err := inotify.Open()
	if err != nil {
		return nil, err
	}
	return &eye{
		file: os.NewFile(uintptr(fd), "inotify"), inotify: fd, nodes: map[int]*node{}, dirty: map[*node]bool{},
		linked: map[*node]bool{},
	}, nil
}

// close gives it up. Its own goroutine closes the fd, which it may just be using.
func (e *eye) close() {
	if !e.closed {
		e.closed = true
		e.nodes, e.top, e.refs, e.dirty, e.linked = nil, nil, nil, nil, nil
		_ = e.file.SetReadDeadline(time.Now())
	}
}

// knows says whether a directory is still where it was found.
func (e *eye) knows(n *node) bool { return n.wd >= 0 && e.nodes[n.wd] == n }

// place watches a directory that is open, and keeps it. One that is known under another name has moved, and the notices
// of that are still to come: it is forgotten there.
func (e *eye) place(n *node, fd int) (*node, error) {
	wd, err := inotify.Watch(e.inotify, fd, wanted)
	if err != nil {
		return nil, err
	}
	if old := e.nodes[wd]; old != nil {
		if old.above == n.above && old.name == n.name && old.role == n.role {
			return old, nil
		}
		e.forget(old)
		if wd, err = inotify.Watch(e.inotify, fd, wanted); err != nil {
			return nil, err
		}
	}
	n.wd = wd
	e.nodes[wd] = n
	if n.above == nil {
		return n, nil
	}
	if old := n.above.below[n.name]; old != nil {
		e.forget(old)
	}
	if n.above.below == nil {
		n.above.below = map[string]*node{}
	}
	n.above.below[n.name] = n
	return n, nil
}

// forget stops watching a directory and all below it, with what happened there: its own name is marked, or will be.
func (e *eye) forget(n *node) {
	for _, one := range n.below {
		e.forget(one)
	}
	if n.above != nil && n.above.below[n.name] == n {
		delete(n.above.below, n.name)
	}
	if e.knows(n) {
		delete(e.nodes, n.wd)
		inotify.Unwatch(e.inotify, n.wd)
	}
	e.marked -= len(n.marks)
	n.marks = nil
	delete(e.dirty, n)
	e.links -= len(n.linked)
	n.linked = nil
	delete(e.linked, n)
}
