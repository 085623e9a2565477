package watch

import (
	"errors"
	"syscall"

	"skerry/keeper/internal/inotify"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/rights"
)

const (
	maxWatches = 65_536
	batch      = 1024 // names read with one change of rights
	maxDepth   = 1024
	maxTold    = 100_000 // names of scans whose own notices may still come
)

// Why a directory can't be watched.
var (
	ErrTooManyWatches = errors.New("there are more than 65,536 directories in it")
	ErrNoWatches      = errors.New("the host's limit of watched directories is reached (fs.inotify.max_user_watches)")
	ErrNoInstances    = errors.New("the host's limit of watchers is reached (fs.inotify.max_user_instances)")
	ErrTooDeep        = errors.New("there are more than 1,024 levels of directories in it")
	errGone           = errors.New("the watched directory is gone")
	errElsewhere      = errors.New("it is not where it should be")
)

// node is a watched directory.
type node struct {
	wd    int
	name  string
	above *node // nil: the root
	below map[string]*node
	told  map[string]bool // names whose coming a scan has told: their own notices may still come
	left  map[string]bool // names whose going a scan has told
	since int             // where the queue ended when it was read
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

// fits says whether a node can be below another. What is seen on the disk may be newer than what was told so far: then a
// directory can seem to lie in itself.
func (n *node) fits(above *node) bool {
	depth := 0
	for ; above != nil; above = above.above {
		if depth++; above == n || depth > maxDepth {
			return false
		}
	}
	return true
}

// place makes a node known under a name, where it may have been moved to; it has to fit.
func (w *Watcher) place(n *node, above *node, name string) {
	if n.above != nil && n.above.below[n.name] == n {
		delete(n.above.below, n.name)
	}
	if old := above.below[name]; old != nil && old != n {
		w.forget(old)
	}
	n.above, n.name = above, name
	if above.below == nil {
		above.below = map[string]*node{}
	}
	above.below[name] = n
}

// forget stops watching a directory and all below it.
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
}

// found is a directory that is to be looked into.
type found struct {
	above *node
	name  string
}

// enter watches a directory and, if it is wanted, all below it. With tell, what is there already is told as created: the
// watch comes first, so that nothing falls between the two.
func (w *Watcher) enter(above *node, name string, tell bool) error {
	pending := []found{{above, name}}
	for len(pending) > 0 {
		if w.pulse != nil {
			if err := w.pulse(); err != nil {
				return err
			}
		}
		next := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		below, err := w.look(next, tell)
		if err == errElsewhere {
			w.miss(next)
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

// look watches one directory and reads its names.
func (w *Watcher) look(f found, tell bool) (below []found, err error) {
	fd, here, err := -1, (*node)(nil), error(nil)
	err = rights.Do(w.user, func() error {
		fd, here, err = w.watch(f)
		return err
	})
	if fd < 0 || err != nil {
		return nil, err
	}
	defer func() { _ = syscall.Close(fd) }()
	dirents := linux.NewDirents(fd)
	for more := true; more; {
		err = rights.Do(w.user, func() error {
			below, more = w.names(dirents, here, below, tell)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	here.since = w.fetched + linux.Pending(w.fd)
	return below, nil
}

// watch opens a directory and watches it. One that is not the user's to see is no error.
func (w *Watcher) watch(f found) (int, *node, error) {
	fd, err := w.open(f)
	if fd < 0 {
		return -1, nil, err
	}
	wd, err := inotify.Watch(w.fd, fd, wanted)
	if n := w.nodes[wd]; err == nil && n != nil {
		if !w.overtake(n, f) {
			_ = syscall.Close(fd)
			return -1, nil, nil // it is known here
		}
		wd, err = inotify.Watch(w.fd, fd, wanted)
	}
	if err == nil && w.nodes[wd] == nil && len(w.nodes) >= maxWatches {
		inotify.Unwatch(w.fd, wd)
		err = ErrTooManyWatches
	}
	if err != nil {
		_ = syscall.Close(fd)
		switch err {
		case syscall.ENOSPC:
			err = ErrNoWatches
		case syscall.EACCES, syscall.ENOENT:
			if f.above != nil {
				err = nil
			}
		}
		return -1, nil, err
	}
	n := &node{wd: wd}
	if bad := w.misfit(n, f.above); bad != nil {
		inotify.Unwatch(w.fd, wd)
		_ = syscall.Close(fd)
		return -1, nil, bad
	}
	w.nodes[wd] = n
	if f.above != nil {
		w.replace(f)
		w.place(n, f.above, f.name)
	}
	return fd, n, nil
}

// open opens what was found; -1 with no error: it is not to be watched. Nothing in /proc and the like is ever told.
func (w *Watcher) open(f found) (int, error) {
	root, err := w.openRoot()
	if err != nil {
		return -1, err
	}
	if f.above == nil {
		if linux.Virtual(root) {
			_ = syscall.Close(root)
			return -1, syscall.EINVAL
		}
		return root, nil
	}
	fd, err := linux.OpenIn(root, join(f.above.path(), f.name), syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK)
	_ = syscall.Close(root)
	if err == nil && linux.Virtual(fd) {
		_ = syscall.Close(fd)
		err = syscall.EINVAL
	}
	switch err {
	case nil:
		return fd, nil
	case syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP:
		return -1, errElsewhere
	}
	return -1, nil
}

// misfit says why a new node can't be below another: that one is too deep, or was itself found to be elsewhere.
func (w *Watcher) misfit(n, above *node) error {
	switch {
	case !n.fits(above):
		return ErrTooDeep
	case above != nil && w.nodes[above.wd] != above:
		return errElsewhere
	}
	return nil
}

// openRoot opens the watched directory by its path, if it is still the same. It can't be kept open: the kernel tells of a
// directory's end only once nobody holds it.
func (w *Watcher) openRoot() (int, error) {
	fd, err := linux.OpenBelow(w.path, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	var st syscall.Stat_t
	if err == nil {
		err = syscall.Fstat(fd, &st)
	}
	if err == nil && w.identity == (inode{}) {
		w.identity = inode{st.Dev, st.Ino}
	}
	if err == nil && w.identity != (inode{st.Dev, st.Ino}) {
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

// names reads some of a directory's names.
func (w *Watcher) names(dirents *linux.Dirents, here *node, below []found, tell bool) ([]found, bool) {
	for range batch {
		entry, err := dirents.Next()
		if entry == nil || err != nil {
			return below, false
		}
		path := join(here.path(), entry.Name)
		directory := entry.Type == syscall.DT_DIR
		if tell {
			w.remember(here, entry.Name)
			if directory {
				w.tell("created", path, true)
			} else {
				w.hold("created", path, createdHold)
			}
		}
		if w.recursive && (directory || entry.Type == syscall.DT_UNKNOWN) && !w.exclude.MatchLast(path, true) {
			if below = append(below, found{here, entry.Name}); len(below) > maxWatches {
				return below, false
			}
		}
	}
	return below, true
}
