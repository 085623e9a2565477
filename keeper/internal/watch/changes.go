package watch

import (
	"strings"

	"skerry/keeper/internal/inotify"
	"skerry/keeper/internal/tempname"
)

func (w *Watcher) created(here *node, n *inotify.Notice) {
	path := join(here.path(), n.Name)
	if n.Directory() {
		w.createdDirectory(here, n.Name, path)
	} else {
		w.learn(here, hashed(n.Name))
		w.hold("created", path, createdHold)
	}
}

func (w *Watcher) createdDirectory(here *node, name, path string) {
	if w.vacate(here, name) { // it has replaced an empty directory
		w.report("removed", path, true)
	}
	w.report("created", path, true)
	w.follow(here, name, path)
}

// follow watches a new directory with its contents.
func (w *Watcher) follow(here *node, name, path string) {
	if w.recursive && !w.exclude.Match(path, true) {
		w.explore(here, name, true)
	}
}

func (w *Watcher) modified(here *node, n *inotify.Notice) {
	path := join(here.path(), n.Name)
	if n.Directory() {
		w.report("modified", path, true)
		return
	}
	w.learn(here, hashed(n.Name))
	w.hold("modified", path, quiet)
}

func (w *Watcher) closed(here *node, n *inotify.Notice) {
	path := join(here.path(), n.Name)
	w.learn(here, hashed(n.Name))
	if !w.settle(path) { // a write through a mapping causes no other notice
		w.report("modified", path, false)
	}
}

func (w *Watcher) removed(here *node, n *inotify.Notice) {
	path := w.leave(here, n)
	w.vacate(here, n.Name)
	w.report("removed", path, n.Directory())
}

// vacate forgets the watched directory of a name and reports whether there was one.
func (w *Watcher) vacate(here *node, name string) bool {
	w.cancelMissed(here, name)
	known := here.below[name]
	if known != nil {
		w.settleAll()
		w.forget(known)
	}
	return known != nil
}

func (w *Watcher) movedFrom(here *node, n *inotify.Notice) {
	path := w.leave(here, n)
	child := here.below[n.Name]
	delete(here.below, n.Name) // another entry may take the name before the target of this move is known
	w.holdMove(path, n, child)
}

// leave releases the held events of a name before the name goes.
func (w *Watcher) leave(here *node, n *inotify.Notice) string {
	path := join(here.path(), n.Name)
	w.cancelMissed(here, n.Name)
	if n.Directory() {
		w.settleAll()
	} else {
		w.unlearn(here, n.Name)
		w.settle(path)
	}
	return path
}

// movedTo handles the second half of a move.
func (w *Watcher) movedTo(here *node, n *inotify.Notice) {
	path := join(here.path(), n.Name)
	w.settle(path)
	w.cancelMissed(here, n.Name)
	from := w.takeMove(n.Cookie)
	kind := "created"
	if w.unlearn(here, n.Name) {
		kind = "modified"
	}
	if !n.Directory() {
		w.learn(here, hashed(n.Name))
	}
	switch {
	case from != nil:
		w.join(from, path, kind)
		w.carry(from, here, n.Name, path)
	case n.Directory():
		w.createdDirectory(here, n.Name, path)
	default:
		w.hold(kind, path, createdHold) // its writer may be about to close it
	}
}

// join makes one event of the two halves of a move, or of the part that the filters let through: that is of the kind.
func (w *Watcher) join(from *held, to, kind string) {
	directory := from.Directory
	old := w.wants(from.Event)
	new := w.wants(Event{Type: "removed", Path: to, Directory: directory})
	from.state = ready
	switch {
	case old && new:
		from.Type, from.To = "moved", to
	case new && directory:
		from.Event = Event{Type: "created", Path: to, Directory: true}
	case new:
		from.state = void
		w.hold(kind, to, createdHold)
	}
}

// carry keeps a moved directory and its contents watched under the new name.
func (w *Watcher) carry(from *held, here *node, name, path string) {
	switch {
	case !from.Directory:
	case from.child != nil && !w.exclude.Match(path, true) && from.child.fits(here):
		w.place(from.child, here, name)
	case from.child != nil:
		w.forget(from.child)
	default: // it was not watched at its old place
		w.vacate(here, name)
		w.follow(here, name, path)
	}
}

func (w *Watcher) report(kind, path string, directory bool) {
	w.keep(&held{Event: Event{Type: kind, Path: path, Directory: directory}})
}

// put adds an event to the ring if the filters let it through.
func (w *Watcher) put(e Event) {
	if e.Type == "moved" || w.wants(e) {
		w.ring.add(e)
	}
}

// wants applies the filters. The removal of a directory always passes: its contents are gone too.
func (w *Watcher) wants(e Event) bool {
	if strings.HasPrefix(e.Path[strings.LastIndexByte(e.Path, '/')+1:], tempname.Prefix) || w.exclude.Match(e.Path, e.Directory) {
		return false
	}
	return len(w.include) == 0 || e.Directory && e.Type == "removed" || w.include.Match(e.Path, e.Directory)
}
