package files

import (
	"sort"
	"syscall"

	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/rights"
)

const (
	maxEntries = 100_000   // names that a walk holds, and entries of a listing
	maxPath    = 256 << 10 // of what a walk gives: a thousand of the longest names
)

// walk goes through a directory and what lies below it in order of the names, to tell of it. What has to be left out is
// counted or marked.
type walk struct {
	way     descent
	rooms   []room
	prefix  []byte // the way to the directory at hand, with a slash at its end unless it is empty
	held    int
	hidden  bool
	cut     bool // there are entries that were left out
	skipped int  // directories that can't be read
}

type room struct {
	reading *linux.Dirents // nil: all names were read
	names   []*linux.Dirent
	prefix  int // of the directory above
}

// begin opens the directory to be walked; it has to run with the user's rights.
func (w *walk) begin(path string) error {
	fd, err := linux.OpenBelow(path, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if err = w.way.begin(fd); err != nil {
		return err
	}
	w.rooms = append(w.rooms, room{reading: linux.NewDirents(fd)})
	return nil
}

func (w *walk) over() bool { return len(w.rooms) == 0 }

func (w *walk) depth() int { return len(w.rooms) }

// next gives the next entry of the directory at hand. If that is nil, it has read some more names, or gone up.
func (w *walk) next() (e *linux.Dirent, err error) {
	r := &w.rooms[len(w.rooms)-1]
	if r.reading != nil {
		return nil, w.read(r)
	}
	if len(r.names) == 0 {
		w.prefix = w.prefix[:r.prefix]
		w.rooms = w.rooms[:len(w.rooms)-1]
		_, err = w.way.leave()
		return nil, err
	}
	e = r.names[0]
	r.names = r.names[1:]
	w.held--
	return e, nil
}

func (w *walk) read(r *room) error {
	for range stepsAtOnce {
		e, err := r.reading.Next()
		if err != nil && err != syscall.ENOENT { // ENOENT: removed meanwhile
			if len(w.rooms) == 1 {
				return err
			}
			w.skipped++
		}
		if e != nil && !w.hidden && e.Name[0] == '.' {
			continue
		}
		if e == nil || w.held == maxEntries {
			w.cut = w.cut || e != nil
			r.reading = nil
			sort.Slice(r.names, func(i, j int) bool { return r.names[i].Name < r.names[j].Name })
			return nil
		}
		r.names = append(r.names, e)
		w.held++
	}
	return nil
}

// enter goes into a directory. One that can't be read, or is none any more, is left out.
func (w *walk) enter(name string) {
	if len(w.prefix)+len(name) >= maxPath {
		w.cut = true
		return
	}
	switch err := w.way.enter(name); err {
	case nil:
		w.rooms = append(w.rooms, room{reading: linux.NewDirents(w.way.fd()), prefix: len(w.prefix)})
		w.prefix = append(append(w.prefix, name...), '/')
	case errElsewhere, syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP:
	default:
		w.skipped++
	}
}

func (w *walk) close() { w.way.close() }

// started begins a walk with the user's rights.
func (a *Area) started(w *walk, path string) (err error) {
	if path, err = a.absolute(path); err != nil {
		return err
	}
	return rights.Do(a.User, func() error { return w.begin(path) })
}
