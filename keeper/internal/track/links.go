package track

import (
	"syscall"

	"skerry/keeper/internal/linux"
)

// maxLinked bounds the files with several names that each scan examines.
const maxLinked = 4096

// A file with several names may be written through any of them, and notices come for that name alone. So the tracker
// remembers the other names with their last ctime, and each scan examines them.

// link remembers or forgets a file with several names.
func (t *Tracker) link(here *node, name string, links uint64, ctime int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.watchSet
	_, known := here.linked[name]
	switch {
	case e == nil || !e.knows(here):
	case links < 2 && known:
		e.unlink(here, name)
	case links < 2 || !known && e.links >= maxLinked:
	default:
		if here.linked == nil {
			here.linked = map[string]int64{}
			e.linked[here] = true
		}
		if !known {
			e.links++
		}
		here.linked[name] = ctime
	}
}

func (w *watchSet) unlink(n *node, name string) {
	delete(n.linked, name)
	w.links--
	if len(n.linked) == 0 {
		n.linked = nil
		delete(w.linked, n)
	}
}

// lookAtLinks marks those that changed. The caller holds the lock.
func (t *Tracker) lookAtLinks(root int) error {
	for n := range t.watchSet.linked {
		fd, path := root, n.path()
		if path != "" {
			var err error
			fd, err = linux.OpenInside(root, path, linux.OPath|syscall.O_DIRECTORY|syscall.O_NOFOLLOW)
			if err != nil && resourceError(err) {
				return err
			}
			if err != nil { // gone: notices are still to come
				continue
			}
		}
		for name, seen := range n.linked {
			var st syscall.Stat_t
			if linux.Lstatat(fd, name, &st) == nil && st.Ctim.Nano() != seen {
				n.linked[name] = st.Ctim.Nano()
				t.mark(t.watchSet, n, name, mark{written: true})
			}
			if t.watchSet == nil { // that was one mark too many
				break
			}
		}
		if fd != root {
			_ = syscall.Close(fd)
		}
		if t.watchSet == nil {
			return nil
		}
	}
	return nil
}
