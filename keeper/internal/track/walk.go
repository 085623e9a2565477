package track

import (
	"syscall"

	"skerry/keeper/internal/iolimit"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/match/gitignore"
	"skerry/keeper/internal/tempname"
)

const (
	batch          = 256 // names examined per disk operation
	maxEntries     = 500_000
	maxDirectories = 65_536
	maxBytes       = 64 << 20 // bytes of all paths and targets
)

// walk reads directories. Each is watched first and read afterwards: changes meanwhile are marked.
type walk struct {
	t           *Tracker
	root        int
	out         Sink
	pending     []found
	batch       []Entry
	entries     int
	directories int
	bytes       int
}

// found is a directory to examine.
type found struct {
	above  *node
	name   string
	passed bool
}

func absent(err error) bool {
	return err == syscall.ENOENT || err == syscall.ENOTDIR || err == syscall.ELOOP
}

// resourceError reports whether an error concerns the keeper's own resources rather than a file; it ends a scan.
func resourceError(err error) bool {
	return err == syscall.EMFILE || err == syscall.ENFILE || err == syscall.ENOMEM || err == ErrUnknown || err == ErrTooMany
}

func (t *Tracker) knows(here *node, name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return here.below[name] != nil
}

// all reports the whole tree and starts watching it.
func (w *walk) all() error {
	t := w.t
	top := &node{wd: -1, chain: t.rules.Root()}
	fd, err := linux.OpenInside(w.root, ".", directory)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.unwatched = true
	if e, err := open(); err == nil {
		if _, err := e.place(top, fd); err == nil && !t.ended {
			t.watchSet, e.top, t.unwatched = e, top, false
			t.watchGit(w.root)
			go t.listen(e)
		} else {
			_ = e.file.Close()
		}
	}
	t.mu.Unlock()
	err = w.list(top, "", fd)
	_ = syscall.Close(fd)
	if err != nil {
		return err
	}
	return w.explore()
}

// explore examines all found directories, recursively.
func (w *walk) explore() error {
	for len(w.pending) > 0 {
		f := w.pending[len(w.pending)-1]
		w.pending = w.pending[:len(w.pending)-1]
		if err := w.enter(f); err != nil {
			return err
		}
	}
	return nil
}

// enter reports a directory and lists it.
func (w *walk) enter(f found) error {
	n := child(f.above, f.name)
	path := n.path()
	verdict := gitignore.Kept
	if f.passed {
		verdict = gitignore.Descend
	}
	n.chain = w.t.rules.Below(f.above.chain, path, verdict)
	e := Entry{Path: path}
	fd := -1
	err := iolimit.Do(func() (err error) {
		if fd, n, err = w.open(n, path); err != nil {
			return err
		}
		var st syscall.Stat_t
		if err = syscall.Fstat(fd, &st); err == nil {
			e.fill(&st)
		}
		return err
	})
	if fd >= 0 {
		defer func() { _ = syscall.Close(fd) }()
	}
	switch {
	case err != nil && resourceError(err):
		return err
	case absent(err): // removed meanwhile
		return nil
	case err != nil: // a mount, or unreadable
		w.add(Entry{Path: path, Type: "other"})
		return w.flush()
	}
	w.add(e)
	return w.list(n, path, fd)
}

// open opens a directory and watches it, both under the lock: the notice of any later move is read after the directory
// is known.
func (w *walk) open(n *node, path string) (int, *node, error) {
	t := w.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return -1, nil, ErrUnknown
	}
	switch {
	case t.watchSet == nil || n.above.wd < 0:
	case !t.watchSet.knows(n.above):
		return -1, nil, syscall.ENOENT // moved meanwhile, and marked
	case len(t.watchSet.nodes) >= maxDirectories:
		return -1, nil, ErrTooMany
	}
	fd, err := linux.OpenInside(w.root, path, directory)
	if err != nil || t.watchSet == nil || n.above.wd < 0 {
		return fd, n, err
	}
	placed, err := t.watchSet.place(n, fd)
	if err != nil { // no watches left: continue without
		t.markUnwatched()
		return fd, n, nil
	}
	return fd, placed, nil
}

// list examines all names of a directory.
func (w *walk) list(n *node, path string, fd int) error {
	dirents := linux.NewDirents(fd)
	for more := true; more; {
		err := iolimit.Do(func() (err error) {
			more, err = w.names(dirents, n, path, fd)
			return err
		})
		if err != nil {
			return err
		}
		if err := w.flush(); err != nil {
			return err
		}
	}
	return nil
}

// names examines some entries of a directory. Directories are not examined here but when they are entered.
func (w *walk) names(dirents *linux.Dirents, here *node, path string, fd int) (bool, error) {
	for range batch {
		d, err := dirents.Next()
		if err == syscall.ENOENT || err == nil && d == nil {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if tempname.Ours(d.Name) {
			continue
		}
		e := Entry{Path: join(path, d.Name), Type: "directory"}
		if d.Type != syscall.DT_DIR {
			if err := e.look(fd, d.Name); absent(err) {
				continue
			} else if err != nil {
				return false, err
			}
		}
		w.judge(here, &e, d.Name, false)
	}
	return true, nil
}

// judge reports an entry, or queues an unknown directory.
func (w *walk) judge(here *node, e *Entry, name string, known bool) {
	if name == gitDir {
		if here.above != nil {
			w.add(Entry{Path: e.Path, Type: "git"})
		}
		return
	}
	isDirectory := e.Type == "directory"
	verdict := w.t.rules.Judge(here.chain, e.Path, name, isDirectory)
	switch {
	case verdict == gitignore.Ignored:
		w.add(Entry{Path: e.Path, Type: "ignored"})
	case !isDirectory || known:
		if e.Type == "file" {
			w.t.link(here, name, e.links, e.Ctime)
		}
		w.add(*e)
	case here.depth >= maxDepth || len(e.Path) > maxPath-maxName-1:
		w.add(Entry{Path: e.Path, Type: "other"})
	default:
		w.directories++
		w.pending = append(w.pending, found{here, name, verdict == gitignore.Descend})
	}
}

func (w *walk) add(e Entry) {
	w.entries++
	w.bytes += len(e.Path) + len(e.Target)
	w.batch = append(w.batch, e)
}

// flush sends the collected entries.
func (w *walk) flush() error {
	if w.entries > maxEntries || w.directories > maxDirectories || w.bytes > maxBytes {
		return ErrTooMany
	}
	for i := range w.batch {
		if err := w.out.Give(&w.batch[i]); err != nil {
			return err
		}
	}
	w.batch = w.batch[:0]
	return w.out.Beat()
}
