package track

import (
	"syscall"
	"time"

	"skerry/keeper/internal/disk"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/temporary"
)

// Head is what a scan begins with. Full: all entries follow, and what is not among them is gone; else those that something
// happened to. Git: refs of the project's own repository changed.
type Head struct {
	Seq  int64 `json:"seq"`
	Full bool  `json:"full"`
	Git  bool  `json:"git"`
}

// Sink takes what a scan finds. Beat is called often; an error of either ends the scan.
type Sink struct {
	Head func(Head) error
	Give func(*Entry) error
	Beat func() error
}

// Scan tells what is there of all that changed since; what was told up to then is forgotten.
func (t *Tracker) Scan(since int64, out Sink) error {
	if err := t.enter(out.Beat); err != nil {
		return err
	}
	defer func() { <-t.turn }()
	root := -1
	var head Head
	err := disk.Do(func() (err error) {
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
	if root < 0 { // all is gone
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
		t.blinded()
		t.mu.Unlock()
	}
	return err
}

// enter waits until nobody else scans.
func (t *Tracker) enter(beat func() error) error {
	for {
		select {
		case t.turn <- struct{}{}:
			return nil
		case <-time.After(time.Second):
			if err := beat(); err != nil {
				return err
			}
		}
	}
}

// start takes all notices, and says how the scan is to be.
func (t *Tracker) start(since int64, root int, id inode, err error) (Head, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return Head{}, ErrUnknown
	}
	switch {
	case err == syscall.ENOENT, err == syscall.ENOTDIR, err == syscall.ELOOP, err == ErrVirtual:
		t.blinded()
		return Head{t.seq, true, true}, nil
	case err != nil:
		return Head{}, err
	}
	if t.eye != nil {
		t.drain(t.eye)
	}
	if t.eye == nil || since < t.lost || since > t.seq || id != t.identity {
		t.lose()
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
	if t.eye == nil {
		t.lose()
		return Head{t.seq, true, true}, nil
	}
	return Head{t.seq, false, t.gitBlind || t.git > since}, nil
}

// acknowledge forgets what somebody was told.
func (t *Tracker) acknowledge(since int64) {
	for n := range t.eye.dirty {
		for name, m := range n.marks {
			if m.seq <= since {
				delete(n.marks, name)
				t.eye.marked--
			}
		}
		if len(n.marks) == 0 {
			n.marks = nil
			delete(t.eye.dirty, n)
		}
	}
}

// touched is a name that something happened to.
type touched struct {
	name string
	mark
}

// marks tells of what something happened to.
func (w *walk) marks() error {
	for _, n := range w.t.dirty() {
		if err := w.within(n); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tracker) dirty() (all []*node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.eye != nil {
		for n := range t.eye.dirty {
			all = append(all, n)
		}
	}
	return all
}

func (t *Tracker) touched(n *node) (names []touched) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, m := range n.marks {
		names = append(names, touched{name, *m})
	}
	return names
}

// within tells of the names in one directory that something happened to. If that itself went meanwhile, it is told with
// what is above.
func (w *walk) within(n *node) error {
	path, fd := n.path(), w.root
	if path != "" {
		var err error
		fd, err = linux.OpenInside(w.root, path, linux.OPath|syscall.O_DIRECTORY|syscall.O_NOFOLLOW)
		switch {
		case err != nil && short(err):
			return err
		case err != nil:
			return nil
		}
		defer func() { _ = syscall.Close(fd) }()
	}
	names := w.t.touched(n)
	for len(names) > 0 {
		some := names[:min(len(names), batch)]
		names = names[len(some):]
		err := disk.Do(func() error {
			for _, one := range some {
				if err := w.touched(n, path, fd, one); err != nil {
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

func (w *walk) touched(here *node, path string, fd int, one touched) error {
	e := Entry{Path: join(path, one.name), Written: one.written}
	err := e.look(fd, one.name)
	switch {
	case absent(err):
		w.add(Entry{Path: e.Path, Type: "gone"})
		return nil
	case err != nil:
		return err
	case temporary.Ours(one.name):
		return nil
	}
	known := !one.tree && w.t.knows(here, one.name)
	if e.Type == "directory" && !known {
		w.add(Entry{Path: e.Path, Type: "gone"}) // what was there before, with all below
	}
	w.judge(here, &e, one.name, known)
	return nil
}
