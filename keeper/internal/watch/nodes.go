package watch

import (
	"errors"
	"hash/maphash"
	"syscall"

	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/inotify"
	"skerry/keeper/internal/linux"
)

const (
	maxWatches = 65_536
	batch      = 1024 // names read per job
	maxDepth   = 1024
	maxNames   = 100_000 // names of a new directory that are reported
	maxKnown   = 100_000 // files of a watcher; an overwritten file beyond them is reported as created
)

var seed = maphash.MakeSeed()

// Reasons why a directory cannot be watched.
var (
	ErrTooManyWatches = errors.New("more than 65,536 directories")
	ErrNoWatches      = errors.New("the host's limit for watched directories is reached (fs.inotify.max_user_watches)")
	ErrNoInstances    = errors.New("the host's limit for watchers is reached (fs.inotify.max_user_instances)")
	ErrTooDeep        = errors.New("more than 1,024 levels of directories")
	errGone           = errors.New("the watched directory is gone")
	errElsewhere      = errors.New("not at its known place")
	errTwice          = errors.New("watched at another place")
)

// node is a watched directory.
type node struct {
	wd       int
	identity inode
	name     string
	above    *node // nil: the root
	below    map[string]*node
	leaving  *held               // the first half of a move of this directory
	files    map[uint64]struct{} // the hashes of the names of its files
}

func (n *node) path() string {
	if n == nil || n.above == nil {
		return ""
	}
	return join(n.above.path(), n.name)
}

func join(above, name string) string {
	if above == "" {
		return name
	}
	return above + "/" + name
}

// halfMove returns the first half of a move of the directory or the nearest of its parents; nil: none.
func (n *node) halfMove() *held {
	for ; n != nil; n = n.above {
		if n.leaving != nil && n.leaving.state == half {
			return n.leaving
		}
	}
	return nil
}

// fits reports whether a node can be below another. The disk may be newer than the notices read so far; then a
// directory can seem to contain itself.
func (n *node) fits(above *node) bool {
	depth := 0
	for ; above != nil; above = above.above {
		if depth++; above == n || depth > maxDepth {
			return false
		}
	}
	return true
}

// place puts a node at a name, possibly after a move; it must fit.
func (w *Watcher) place(n *node, above *node, name string) {
	if n.above != nil && n.above.below[n.name] == n {
		delete(n.above.below, n.name)
	}
	if old := above.below[name]; old != nil && old != n {
		w.forget(old)
	}
	n.above, n.name, n.leaving = above, name, nil
	if above.below == nil {
		above.below = map[string]*node{}
	}
	above.below[name] = n
}

// forget stops watching a directory and everything below it.
func (w *Watcher) forget(n *node) {
	for _, child := range n.below {
		w.forget(child)
	}
	w.drop(n)
}

func (w *Watcher) drop(n *node) {
	if n.above != nil && n.above.below[n.name] == n {
		delete(n.above.below, n.name)
	}
	if w.nodes[n.wd] == n {
		delete(w.nodes, n.wd)
		inotify.Unwatch(w.fd, n.wd)
	}
	w.known -= len(n.files)
	n.files = nil
}

// learn remembers a file of a directory: a notice of a move does not say whether the file has replaced another one.
func (w *Watcher) learn(here *node, name uint64) {
	if _, known := here.files[name]; known || w.known >= maxKnown {
		return
	}
	if here.files == nil {
		here.files = map[uint64]struct{}{}
	}
	here.files[name] = struct{}{}
	w.known++
}

// unlearn forgets a file and reports whether it was known.
func (w *Watcher) unlearn(here *node, name string) bool {
	hash := hashed(name)
	_, known := here.files[hash]
	if known {
		delete(here.files, hash)
		w.known--
	}
	return known
}

func hashed(name string) uint64 { return maphash.String(seed, name) }

// found is a directory to examine.
type found struct {
	above *node
	name  string
}

// enter watches a directory and, if recursive, everything below it. With report, existing entries are reported as
// created.
func (w *Watcher) enter(above *node, name string, report bool) error {
	pending := []found{{above, name}}
	for len(pending) > 0 {
		if err := w.beat(); err != nil {
			return err
		}
		next := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		below, err := w.look(next, report)
		if err == errElsewhere || err == errTwice {
			w.miss(next, err == errTwice)
			continue
		}
		if err != nil {
			return err
		}
		if pending = append(pending, below...); len(pending) > maxWatches {
			return ErrTooManyWatches
		}
	}
	return nil
}

func (w *Watcher) beat() error {
	if w.heartbeat == nil {
		return nil
	}
	return w.heartbeat()
}

// look watches one directory and reads its names.
func (w *Watcher) look(f found, report bool) ([]found, error) {
	if w.superseded(f) {
		return nil, nil
	}
	fd, here, err := -1, (*node)(nil), error(nil)
	err = asuser.Do(w.user, func() error {
		fd, here, err = w.watch(f)
		return err
	})
	if fd < 0 || err != nil {
		return nil, err
	}
	defer func() { _ = syscall.Close(fd) }()
	entries, files, cut, err := w.read(fd, report)
	if err != nil {
		return nil, err
	}
	if err := w.beat(); err != nil {
		return nil, err
	}
	w.readAhead()
	if w.superseded(f) { // the name may have been another directory's
		w.forget(here)
		return nil, nil
	}
	if cut {
		w.ring.add(Event{Type: "overflow", Directory: true})
	}
	w.learnAll(here, files)
	return w.list(here, entries, report), nil
}

// superseded reports whether the queued notices will lead to a directory, or its parent is no longer watched.
func (w *Watcher) superseded(f found) bool {
	return f.above != nil && (w.nodes[f.above.wd] != f.above || w.queue.changing(f.above.wd, f.name))
}

// watch opens a directory and watches it. It ignores directories that the user may not read.
func (w *Watcher) watch(f found) (int, *node, error) {
	fd, err := w.open(f)
	if fd < 0 {
		return -1, nil, err
	}
	n, err := w.add(fd, f)
	if n == nil {
		_ = syscall.Close(fd)
		return -1, nil, err
	}
	return fd, n, nil
}

// add watches an open directory; nil without an error: not to be watched.
func (w *Watcher) add(fd int, f found) (*node, error) {
	wd, err := inotify.Watch(w.fd, fd, inotifyMask)
	if known := w.nodes[wd]; err == nil && known != nil {
		switch {
		case w.endHalfMoves(known): // it has left and come back
		case known.above == nil || f.above == nil || known == f.above.below[f.name]:
			return nil, nil
		default:
			return nil, errTwice
		}
		wd, err = inotify.Watch(w.fd, fd, inotifyMask)
	}
	n := &node{wd: wd}
	if err == nil {
		n.identity, err = identify(fd)
	}
	switch {
	case err == syscall.ENOSPC:
		return nil, ErrNoWatches
	case (err == syscall.EACCES || err == syscall.ENOENT) && f.above != nil:
		return nil, nil
	case err != nil:
		return nil, err
	}
	switch {
	case len(w.nodes) >= maxWatches:
		err = ErrTooManyWatches
	case !n.fits(f.above):
		err = ErrTooDeep
	case f.above != nil && w.nodes[f.above.wd] != f.above: // the parent was half moved
		err = errElsewhere
	}
	if err != nil {
		inotify.Unwatch(w.fd, wd)
		return nil, err
	}
	w.nodes[wd] = n
	if f.above != nil {
		w.place(n, f.above, f.name)
	}
	return n, nil
}

// open opens a found directory; -1 without an error: not to be watched. Nothing in /proc and similar file systems is
// ever reported.
func (w *Watcher) open(f found) (int, error) {
	if f.above == nil {
		root, err := w.openRoot()
		if err == nil && linux.Virtual(root) {
			_ = syscall.Close(root)
			return -1, syscall.EINVAL
		}
		return root, err
	}
	parent, err := w.openNode(f.above)
	if parent < 0 {
		return -1, err
	}
	fd, err := linux.OpenIn(parent, f.name, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK)
	_ = syscall.Close(parent)
	if err == nil && linux.Virtual(fd) {
		_ = syscall.Close(fd)
		err = syscall.EINVAL
	}
	if err != nil {
		return -1, elsewhere(err)
	}
	return fd, nil
}

// openNode opens a watched directory at its known path, if it is there.
func (w *Watcher) openNode(n *node) (int, error) {
	root, err := w.openRoot()
	if err != nil || n.above == nil {
		return root, err
	}
	fd, err := linux.OpenIn(root, n.path(), linux.OPath|syscall.O_DIRECTORY)
	_ = syscall.Close(root)
	if err != nil {
		return -1, elsewhere(err)
	}
	if at, err := identify(fd); err != nil || at != n.identity {
		_ = syscall.Close(fd)
		return -1, errElsewhere
	}
	return fd, nil
}

// elsewhere returns errElsewhere if a path does not lead to a directory; it ignores other errors.
func elsewhere(err error) error {
	switch err {
	case syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP:
		return errElsewhere
	}
	return nil
}

func identify(fd int) (inode, error) {
	var st syscall.Stat_t
	err := syscall.Fstat(fd, &st)
	return inode{st.Dev, st.Ino}, err
}

// openRoot opens the watched directory by its path, if it is still the same. The fd cannot stay open: the kernel
// reports the end of a directory only when no process holds it.
func (w *Watcher) openRoot() (int, error) {
	fd, err := linux.OpenBelow(w.path, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	var at inode
	if err == nil {
		at, err = identify(fd)
	}
	if err == nil && w.identity == (inode{}) {
		w.identity = at
	}
	if err == nil && w.identity != at {
		err = errGone
	}
	if err != nil && fd >= 0 {
		_ = syscall.Close(fd)
		fd = -1
	}
	if err != nil && w.started {
		err = errGone
	}
	return fd, err
}

// read returns the entries of a directory: with all, up to maxNames files too. It reports whether some are missing. names
// are the hashes of the files' names.
func (w *Watcher) read(fd int, all bool) (entries []linux.Dirent, names []uint64, cut bool, err error) {
	dirents, files := linux.NewDirents(fd), 0
	for more := true; more && err == nil; {
		if err = w.beat(); err != nil {
			break
		}
		err = asuser.Do(w.user, func() error {
			for range batch {
				e, err := dirents.Next()
				if more = e != nil && err == nil && len(entries)-files <= maxWatches; !more {
					break
				}
				directory := e.Type == syscall.DT_DIR || e.Type == syscall.DT_UNKNOWN
				if !directory && w.known+len(names) < maxKnown {
					names = append(names, hashed(e.Name))
				}
				switch {
				case directory:
					entries = append(entries, *e)
				case all && files < maxNames:
					entries = append(entries, *e)
					files++
				case all:
					cut = true
				}
			}
			return nil
		})
	}
	return entries, names, cut, err
}

// learnAll remembers the files that a scan has found, except those with queued changes, which lead to them.
func (w *Watcher) learnAll(here *node, files []uint64) {
	changing := make(map[uint64]bool, len(w.queue.changes[here.wd]))
	for name := range w.queue.changes[here.wd] {
		changing[hashed(name)] = true
	}
	for _, name := range files {
		if !changing[name] {
			w.learn(here, name)
		}
	}
}

// list reports the entries of a new directory and returns its directories. The queued notices lead to other entries.
func (w *Watcher) list(here *node, entries []linux.Dirent, report bool) (below []found) {
	path := here.path()
	for _, e := range entries {
		if w.queue.changing(here.wd, e.Name) {
			continue
		}
		path, directory := join(path, e.Name), e.Type == syscall.DT_DIR
		switch {
		case !report:
		case directory:
			w.report("created", path, true)
		default:
			w.hold("created", path, createdHold)
		}
		if w.recursive && (directory || e.Type == syscall.DT_UNKNOWN) && !w.exclude.MatchLast(path, true) {
			below = append(below, found{here, e.Name})
		}
	}
	w.queue.cover(here.wd)
	return below
}
