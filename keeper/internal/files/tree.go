package files

import (
	"syscall"

	"skerry/keeper/internal/linux"
)

// heldNames bounds what a tree keeps: the names of directories that it has seen and not yet entered.
const heldNames = 16 << 20

// tree goes through a directory and all below it to change something: all entries of a directory first, some at a time,
// then one after the other the directories among them. So none is too large and none too deep.
type tree struct {
	way   descent
	rooms []treeRoom
	held  int

	entry  func(dir int, e *linux.Dirent) (verdict, error) // deeper: it is a directory
	unlock func(dir int, name string) error                // nil, or what may open a directory that can't be entered
	begun  func(name string) error                         // nil, or called before a directory is entered
	ending func(fd int) error                              // nil, or called with a directory that is done
	left   func(dir int, name string) error                // nil, or called from above a directory that is done
}

type treeRoom struct {
	entries *linux.Dirents // nil: all of them were seen
	dirs    []string
}

// begin takes over the directory's fd.
func (t *tree) begin(fd int) error {
	if err := t.way.begin(fd); err != nil {
		return err
	}
	t.rooms = append(t.rooms, treeRoom{entries: linux.NewDirents(fd)})
	return nil
}

func (t *tree) close() { t.way.close() }

func (t *tree) step() (verdict, error) {
	if len(t.rooms) == 0 {
		return done, nil
	}
	r := &t.rooms[len(t.rooms)-1]
	switch {
	case r.entries != nil:
		return t.next(r)
	case len(r.dirs) > 0:
		name := r.dirs[len(r.dirs)-1]
		r.dirs = r.dirs[:len(r.dirs)-1]
		t.held -= len(name)
		return goOn, t.at(name, t.enter(name))
	}
	return goOn, t.leave()
}

func (t *tree) next(r *treeRoom) (verdict, error) {
	e, err := r.entries.Next()
	if e == nil {
		if r.entries = nil; err == syscall.ENOENT { // removed meanwhile
			err = nil
		}
		return goOn, t.at("", err)
	}
	v, err := t.entry(t.way.fd(), e)
	if err != nil {
		return v, t.at(e.Name, err)
	}
	if v == deeper {
		return goOn, t.later(r, e.Name)
	}
	return v, nil
}

// later has a directory entered, once its turn comes.
func (t *tree) later(r *treeRoom, name string) error {
	if t.held += len(name); t.held > heldNames {
		return t.at(name, syscall.E2BIG)
	}
	r.dirs = append(r.dirs, name)
	return nil
}

func (t *tree) enter(name string) error {
	if t.begun != nil {
		if err := t.begun(name); err != nil {
			return err
		}
	}
	err := t.way.enter(name)
	if err == syscall.EACCES && t.unlock != nil && t.unlock(t.way.fd(), name) == nil {
		err = t.way.enter(name)
	}
	if err == errElsewhere || err == syscall.ENOENT {
		return t.passed(name)
	}
	if err == nil {
		t.rooms = append(t.rooms, treeRoom{entries: linux.NewDirents(t.way.fd())})
	}
	return err
}

func (t *tree) leave() error {
	if t.ending != nil {
		if err := t.ending(t.way.fd()); err != nil {
			return t.at("", err)
		}
	}
	t.rooms = t.rooms[:len(t.rooms)-1]
	name, err := t.way.leave()
	if err == nil && len(t.rooms) > 0 {
		err = t.passed(name)
	}
	return t.at(name, err)
}

func (t *tree) passed(name string) error {
	if t.left == nil {
		return nil
	}
	return t.left(t.way.fd(), name)
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
