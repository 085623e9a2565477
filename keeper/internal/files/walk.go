package files

import (
	"sort"
	"syscall"

	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/linux"
)

const (
	maxEntries = 100_000   // names held by a walk, and entries of a listing
	maxPath    = 256 << 10 // bytes of a path: a thousand of the longest names
)

// walk reads a directory and everything below it, sorted by name. It counts or marks the entries that it leaves out.
type walk struct {
	way     descent
	stack   []walkLevel
	prefix  []byte // path of the current directory, with a slash at the end unless it is empty
	held    int
	hidden  bool
	cut     bool // entries were left out
	skipped int  // unreadable directories
}

type walkLevel struct {
	reading *linux.Dirents // nil: all names were read
	names   []*linux.Dirent
	prefix  int // length of the parent's prefix
}

// begin opens the directory. It must run with the user's rights.
func (w *walk) begin(path string) error {
	fd, err := linux.OpenBelow(path, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if err = w.way.begin(fd); err != nil {
		return err
	}
	w.stack = append(w.stack, walkLevel{reading: linux.NewDirents(fd)})
	return nil
}

func (w *walk) over() bool { return len(w.stack) == 0 }

func (w *walk) depth() int { return len(w.stack) }

// next returns the next entry of the current directory. nil: it has read some more names, or gone up.
func (w *walk) next() (e *linux.Dirent, err error) {
	r := &w.stack[len(w.stack)-1]
	if r.reading != nil {
		return nil, w.read(r)
	}
	if len(r.names) == 0 {
		w.prefix = w.prefix[:r.prefix]
		w.stack = w.stack[:len(w.stack)-1]
		_, err = w.way.leave()
		return nil, err
	}
	e = r.names[0]
	r.names = r.names[1:]
	w.held--
	return e, nil
}

// read reads some names of a directory and, at its end, sorts them.
func (w *walk) read(r *walkLevel) error {
	for range stepsPerJob {
		e, err := r.reading.Next()
		if err != nil && err != syscall.ENOENT { // ENOENT: removed meanwhile
			if len(w.stack) == 1 {
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

// enter enters a directory. It leaves out unreadable ones, and entries that are no directory any more.
func (w *walk) enter(name string) {
	if len(w.prefix)+len(name) >= maxPath {
		w.cut = true
		return
	}
	switch err := w.way.enter(name); err {
	case nil:
		w.stack = append(w.stack, walkLevel{reading: linux.NewDirents(w.way.fd()), prefix: len(w.prefix)})
		w.prefix = append(append(w.prefix, name...), '/')
	case errKernelFS, syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP:
	default:
		w.skipped++
	}
}

func (w *walk) close() { w.way.close() }

// startWalk starts a walk with the user's rights.
func (fs *UserFS) startWalk(w *walk, path string) (err error) {
	if path, err = fs.absolute(path); err != nil {
		return err
	}
	return asuser.Do(fs.User, func() error { return w.begin(path) })
}
