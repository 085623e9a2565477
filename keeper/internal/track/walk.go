package track

import (
	"syscall"

	"skerry/keeper/internal/disk"
	"skerry/keeper/internal/ignore"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/temporary"
)

const (
	batch          = 256 // names that are looked at with one thread of the disk's
	maxEntries     = 500_000
	maxDirectories = 65_536
	maxBytes       = 64 << 20 // of all paths and targets
)

// walk goes through directories. Each is watched first and read then: what happens meanwhile is marked.
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

// found is a directory that is to be looked into.
type found struct {
	above  *node
	name   string
	passed bool
}

func absent(err error) bool {
	return err == syscall.ENOENT || err == syscall.ENOTDIR || err == syscall.ELOOP
}

// short is for an error of the keeper's own, which says nothing of the file and ends a scan.
func short(err error) bool {
	return err == syscall.EMFILE || err == syscall.ENFILE || err == syscall.ENOMEM || err == ErrUnknown || err == ErrTooMany
}

func (t *Tracker) knows(here *node, name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return here.below[name] != nil
}

// all tells of the whole tree, and has it watched from now on.
func (w *walk) all() error {
	t := w.t
	top := &node{wd: -1, chain: t.rules.Root()}
	fd, err := linux.OpenInside(w.root, ".", directory)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.blind = true
	if e, err := open(); err == nil {
		if _, err := e.place(top, fd); err == nil && !t.ended {
			t.eye, e.top, t.blind = e, top, false
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

// explore looks into all directories that were found, and those in them.
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

func (w *walk) enter(f found) error {
	n := child(f.above, f.name)
	path := n.path()
	verdict := ignore.Kept
	if f.passed {
		verdict = ignore.Passed
	}
	n.chain = w.t.rules.Below(f.above.chain, path, verdict)
	e := Entry{Path: path}
	fd := -1
	err := disk.Do(func() (err error) {
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
	case err != nil && short(err):
		return err
	case absent(err): // gone meanwhile
		return nil
	case err != nil: // a mount, or it can't be read
		w.add(Entry{Path: path, Type: "other"})
		return w.flush()
	}
	w.add(e)
	return w.list(n, path, fd)
}

// open opens a directory and watches it. Both at once: whatever moves it later tells so after it is known.
func (w *walk) open(n *node, path string) (int, *node, error) {
	t := w.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return -1, nil, ErrUnknown
	}
	switch {
	case t.eye == nil || n.above.wd < 0:
	case !t.eye.knows(n.above):
		return -1, nil, syscall.ENOENT // moved meanwhile, and marked
	case len(t.eye.nodes) >= maxDirectories:
		return -1, nil, ErrTooMany
	}
	fd, err := linux.OpenInside(w.root, path, directory)
	if err != nil || t.eye == nil || n.above.wd < 0 {
		return fd, n, err
	}
	placed, err := t.eye.place(n, fd)
	if err != nil { // no watch is left: it goes on without
		t.blinded()
		return fd, n, nil
	}
	return fd, placed, nil
}

// list looks at all names in a directory.
func (w *walk) list(n *node, path string, fd int) error {
	dirents := linux.NewDirents(fd)
	for more := true; more; {
		err := disk.Do(func() (err error) {
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

func (w *walk) names(dirents *linux.Dirents, here *node, path string, fd int) (bool, error) {
	for range batch {
		d, err := dirents.Next()
		if err == syscall.ENOENT || err == nil && d == nil {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if temporary.Ours(d.Name) {
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

// judge tells of an entry, or has a directory looked into that is not known.
func (w *walk) judge(here *node, e *Entry, name string, known bool) {
	if name == gits {
		if here.above != nil {
			w.add(Entry{Path: e.Path, Type: "git"})
		}
		return
	}
	isDirectory := e.Type == "directory"
	verdict := w.t.rules.Judge(here.chain, e.Path, name, isDirectory)
	switch {
	case verdict == ignore.Left:
		w.add(Entry{Path: e.Path, Type: "ignored"})
	case !isDirectory || known:
		if e.Type == "file" {
			w.t.link(here, name, e.links, e.Ctime)
		}
		w.add(*e)
	case here.depth >= deepest || len(e.Path) > longest-longName-1:
		w.add(Entry{Path: e.Path, Type: "other"})
	default:
		w.directories++
		w.pending = append(w.pending, found{here, name, verdict == ignore.Passed})
	}
}

func (w *walk) add(e Entry) {
	w.entries++
	w.bytes += len(e.Path) + len(e.Target)
	w.batch = append(w.batch, e)
}

// flush sends what was found.
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
