package files

import (
	"syscall"

	"skerry/keeper/internal/linux"
)

// heldNames bounds the names of directories that a tree has seen and not yet entered.
const heldNames = 16 << 20

// tree walks a directory to change it: first all entries of a directory, some at a time, then its subdirectories one
// after the other. So no directory is too large or too deep.
type tree struct {
	way   descent
	stack []treeLevel
	held  int

	entry      func(dir int, e *linux.Dirent) (verdict, error) // returns deeper for a directory
	tryUnlock  func(dir int, name string) error                // optional; may make a directory accessible
	onEnter    func(name string) error                         // optional; called before a directory is entered
	onLeave    func(fd int) error                              // optional; called with a finished directory
	afterLeave func(dir int, name string) error                // optional; called with the parent of a finished directory
}

type treeLevel struct {
	entries *linux.Dirents // nil: all were read
	dirs    []string
}

// begin takes ownership of the directory's fd.
func (t *tree) begin(fd int) error {
	if err := t.way.begin(fd); err != nil {
		return err
	}
	t.stack = append(t.stack, treeLevel{entries: linux.NewDirents(fd)})
	return nil
}

func (t *tree) close() { t.way.close() }

func (t *tree) step() (verdict, error) {
	if len(t.stack) == 0 {
		return done, nil
	}
	r := &t.stack[len(t.stack)-1]
	switch {
	case r.entries != nil:
		return t.next(r)
	case len(r.dirs) > 0:
		name := r.dirs[len(r.dirs)-1]
		r.dirs = r.dirs[:len(r.dirs)-1]
		t.held -= len(name)
		return proceed, t.at(name, t.enter(name))
	}
	return proceed, t.leave()
}

// next handles one entry of the current directory.
func (t *tree) next(r *treeLevel) (verdict, error) {
	e, err := r.entries.Next()
	if e == nil {
		if r.entries = nil; err == syscall.ENOENT { // removed meanwhile
			err = nil
		}
		return proceed, t.at("", err)
	}
	v, err := t.entry(t.way.fd(), e)
	if err != nil {
		return v, t.at(e.Name, err)
	}
	if v == deeper {
		return proceed, t.enterLater(r, e.Name)
	}
	return v, nil
}

// enterLater queues a directory.
func (t *tree) enterLater(r *treeLevel, name string) error {
	if t.held += len(name); t.held > heldNames {
		return t.at(name, syscall.E2BIG)
	}
	r.dirs = append(r.dirs, name)
	return nil
}

// enter enters a directory, after trying to make it accessible. It passes over kernel file systems and removed
// directories.
func (t *tree) enter(name string) error {
	if t.onEnter != nil {
		if err := t.onEnter(name); err != nil {
			return err
		}
	}
	err := t.way.enter(name)
	if err == syscall.EACCES && t.tryUnlock != nil && t.tryUnlock(t.way.fd(), name) == nil {
		err = t.way.enter(name)
	}
	if err == errKernelFS || err == syscall.ENOENT {
		return t.leftDirectory(name)
	}
	if err == nil {
		t.stack = append(t.stack, treeLevel{entries: linux.NewDirents(t.way.fd())})
	}
	return err
}

func (t *tree) leave() error {
	if t.onLeave != nil {
		if err := t.onLeave(t.way.fd()); err != nil {
			return t.at("", err)
		}
	}
	t.stack = t.stack[:len(t.stack)-1]
	name, err := t.way.leave()
	if err == nil && len(t.stack) > 0 {
		err = t.leftDirectory(name)
	}
	return t.at(name, err)
}

func (t *tree) leftDirectory(name string) error {
	if t.afterLeave == nil {
		return nil
	}
	return t.afterLeave(t.way.fd(), name)
}

func (t *tree) at(name string, err error) error {
	if err == nil {
		return nil
	}
	if path := t.way.path() + name; path != "" {
		return &At{path, err}
	}
	return err
}
