package track

import (
	"syscall"

	"skerry/keeper/internal/linux"
)

// maxLinked is how many files with several names are looked at by each scan.
const maxLinked = 4096

// A file with several names may be written to by one of them, and notices come of that one alone. So the others are kept in
// mind, with the ctime that they were seen with, and looked at by each scan.

// link keeps a file in mind, or forgets it.
func (t *Tracker) link(here *node, name string, links uint64, ctime int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.eye
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

func (e *eye) unlink(n *node, name string) {
	delete(n.linked, name)
	e.links--
	if len(n.linked) == 0 {
		n.linked = nil
		delete(e.linked, n)
	}
}

// lookAtLinks marks those of them that changed; the caller has the lock.
func (t *Tracker) lookAtLinks(root int) error {
	for n := range t.eye.linked {
		fd, path := root, n.path()
		if path != "" {
			var err error
			fd, err = linux.OpenInside(root, path, linux.OPath|syscall.O_DIRECTORY|syscall.O_NOFOLLOW)
			if err != nil && short(err) {
				return err
			}
			if err != nil { // it went: notices of that are still to come
				continue
			}
		}
		for name, seen := range n.linked {
			var st syscall.Stat_t
			if linux.Lstatat(fd, name, &st) == nil && st.Ctim.Nano() != seen {
				n.linked[name] = st.Ctim.Nano()
				t.mark(t.eye, n, name, mark{written: true})
			}
			if t.eye == nil { // that was one mark too many
				break
			}
		}
		if fd != root {
			_ = syscall.Close(fd)
		}
		if t.eye == nil {
			return nil
		}
	}
	return nil
}
