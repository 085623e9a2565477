package track

import (
	"syscall"
	"time"

	"skerry/keeper/internal/iolimit"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/tempname"
)

// Head is the start of a scan. Full: all entries follow, and everything else is gone; otherwise only changed entries
// follow. Git: refs of the project's own repository changed.
type Head struct {
	Seq  int64 `json:"seq"`
	Full bool  `json:"full"`
	Git  bool  `json:"git"`
}

// Sink receives the results of a scan. Beat is called often; an error of any function ends the scan.
type Sink struct {
	Head func(Head) error
	Give func(*Entry) error
	Beat func() error
}

// Scan reports the current state of everything that changed after since, and forgets changes up to since.
func (t *Tracker) Scan(since int64, out Sink) error {
	if err := t.enter(out.Beat); err != nil {
		return err
	}
	defer func() { <-t.scanning }()
	root := -1
	var head Head
	err := iolimit.Do(func() (err error) {
		var id inode
		root, id, err = t.openRoot()
		head, err = t.start(since, root, id, err)
		return err
	})
	if root >= 0 {
		defer func() { _ = syscall.Close(root) }()
	}
	if err != nil {
		return err
	}
	if err = out.Head(head); err != nil {
		return err
	}
	if root < 0 { // everything is gone
		return nil
	}
	w := &walk{t: t, root: root, out: out}
	if head.Full {
		err = w.all()
	} else {
		err = w.marks()
	}
	if err == ErrTooMany {
		t.mu.Lock()
		t.markUnwatched()
		t.mu.Unlock()
	}
	return err
}

// enter waits until no other scan runs.
func (t *Tracker) enter(beat func() error) error {
	for {
		select {
		case t.scanning <- struct{}{}:
			return nil
		case <-time.After(time.Second):
			if err := beat(); err != nil {
				return err
			}
		}
	}
}

// start reads all notices and decides whether the scan is full.
func (t *Tracker) start(since int64, root int, id inode, err error) (Head, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return Head{}, ErrUnknown
	}
	switch {
	case err == syscall.ENOENT, err == syscall.ENOTDIR, err == syscall.ELOOP, err == ErrVirtual:
		t.markUnwatched()
		return Head{t.seq, true, true}, nil
	case err != nil:
		return Head{}, err
	}
	if t.watchSet != nil {
		t.drain(t.watchSet)
	}
	if t.watchSet == nil || since < t.lost || since > t.seq || id != t.identity {
		t.loseTrack()
		t.identity = id
		return Head{t.seq, true, true}, nil
	}
	t.acknowledge(since)
	if t.gitStale {
		t.watchGit(root)
	}
	if err := t.lookAtLinks(root); err != nil {
		return Head{}, err
	}
	if t.watchSet == nil {
		t.loseTrack()
		return Head{t.seq, true, true}, nil
	}
	return Head{t.seq, false, t.gitUnwatched || t.git > since}, nil
}

// acknowledge forgets the marks that the host has received.
func (t *Tracker) acknowledge(since int64) {
	for n := range t.watchSet.dirty {
		for name, m := range n.marks {
			if m.seq <= since {
				delete(n.marks, name)
				t.watchSet.marked--
			}
		}
		if len(n.marks) == 0 {
			n.marks = nil
			delete(t.watchSet.dirty, n)
		}
	}
}

// markedName is a changed name.
type markedName struct {
	name string
	mark
}

// marks reports the changed names.
func (w *walk) marks() error {
	for _, n := range w.t.dirty() {
		if err := w.scanMarked(n); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tracker) dirty() (all []*node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.watchSet != nil {
		for n := range t.watchSet.dirty {
			all = append(all, n)
		}
	}
	return all
}

func (t *Tracker) markedNames(n *node) (names []markedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, m := range n.marks {
		names = append(names, markedName{name, *m})
	}
	return names
}

// scanMarked reports the changed names of one directory. If the directory itself is gone, its parent reports it.
func (w *walk) scanMarked(n *node) error {
	path, fd := n.path(), w.root
	if path != "" {
		var err error
		fd, err = linux.OpenInside(w.root, path, linux.OPath|syscall.O_DIRECTORY|syscall.O_NOFOLLOW)
		switch {
		case err != nil && resourceError(err):
			return err
		case err != nil:
			return nil
		}
		defer func() { _ = syscall.Close(fd) }()
	}
	names := w.t.markedNames(n)
	for len(names) > 0 {
		some := names[:min(len(names), batch)]
		names = names[len(some):]
		err := iolimit.Do(func() error {
			for _, one := range some {
				if err := w.reportMarked(n, path, fd, one); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := w.flush(); err != nil {
			return err
		}
	}
	return w.explore()
}

// reportMarked reports one changed name. A new directory is reported as gone first, so that the host drops its old
// contents.
func (w *walk) reportMarked(here *node, path string, fd int, one markedName) error {
	e := Entry{Path: join(path, one.name), Written: one.written}
	err := e.look(fd, one.name)
	switch {
	case absent(err):
		w.add(Entry{Path: e.Path, Type: "gone"})
		return nil
	case err != nil:
		return err
	case tempname.Ours(one.name):
		return nil
	}
	known := !one.tree && w.t.knows(here, one.name)
	if e.Type == "directory" && !known {
		w.add(Entry{Path: e.Path, Type: "gone"}) // the previous content of the name, with everything below
	}
	w.judge(here, &e, one.name, known)
	return nil
}
