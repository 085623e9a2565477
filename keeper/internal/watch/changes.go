package watch

import (
	"strings"

	"skerry/keeper/internal/inotify"
	"skerry/keeper/internal/temporary"
)

func (w *Watcher) created(here *node, n *inotify.Notice) {
	path := join(here.path(), n.Name)
	if here.told[n.Name] {
		delete(here.told, n.Name)
		return
	}
	if !n.Directory() {
		w.hold("created", path, createdHold)
		return
	}
	w.tell("created", path, true)
	w.follow(here, n.Name, path)
}

// follow watches a directory that came, with all that is in it.
func (w *Watcher) follow(here *node, name, path string) {
	if w.recursive && !w.exclude.Match(path, true) {
		w.explore(here, name, true)
	}
}

func (w *Watcher) modified(path string, n *inotify.Notice) {
	if n.Directory() {
		w.tell("modified", path, true)
		return
	}
	w.hold("modified", path, quiet)
}

func (w *Watcher) closed(path string) {
	if !w.settle(path) { // what is written through a mapping shows in nothing else
		w.tell("modified", path, false)
	}
}

func (w *Watcher) removed(here *node, n *inotify.Notice) {
	path := w.leave(here, n)
	if here.left[n.Name] {
		delete(here.left, n.Name)
		return
	}
	w.vacate(here, n, path)
}

// vacate tells that a name is gone. If a later directory of that name is known already, it is found anew when it comes.
func (w *Watcher) vacate(here *node, n *inotify.Notice, path string) {
	if child := here.below[n.Name]; child != nil {
		w.settleAll()
		w.forget(child)
	}
	w.tell("removed", path, n.Directory())
}

func (w *Watcher) movedFrom(here *node, n *inotify.Notice) {
	path := w.leave(here, n)
	if here.left[n.Name] {
		delete(here.left, n.Name)
		w.overtaken[n.Cookie] = true
		return
	}
	child := here.below[n.Name]
	if w.newer(child) || w.newer(here) { // where it went, it is a coming
		w.vacate(here, n, path)
		return
	}
	delete(here.below, n.Name) // another may take the name before it is known where this one went
	w.holdMove(path, n, child)
}

// leave lets what is kept back of a name go before that name does.
func (w *Watcher) leave(here *node, n *inotify.Notice) string {
	path := join(here.path(), n.Name)
	delete(here.told, n.Name)
	w.unmiss(here, n.Name)
	if n.Directory() {
		w.settleAll()
	} else {
		w.settle(path)
	}
	return path
}

func (w *Watcher) movedTo(here *node, n *inotify.Notice) {
	path := join(here.path(), n.Name)
	w.settle(path)
	told := here.told[n.Name]
	delete(here.told, n.Name)
	from, known := w.takeMove(n.Cookie), here.below[n.Name]
	switch {
	case w.overtaken[n.Cookie] && known != nil: // found where it went
		w.follow(here, n.Name, path)
	case from != nil && (told && !n.Directory() || w.newer(known) || known != nil && from.child == nil):
		from.state = ready // a scan was quicker: all that is left to tell is that it is no longer there
		if from.child != nil {
			w.forget(from.child)
		}
		if n.Directory() {
			w.follow(here, n.Name, path)
		}
	case from != nil:
		w.join(from, path)
		w.carry(from, here, n.Name, path)
	case told && !n.Directory():
	case told && w.newer(known):
		w.follow(here, n.Name, path)
	case n.Directory():
		w.tell("created", path, true)
		w.follow(here, n.Name, path)
	default:
		w.hold("created", path, createdHold) // whoever put it there may just be closing it
	}
}

// join makes one event of the two halves of a move, or as much as is wanted of it.
func (w *Watcher) join(from *held, to string) {
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
		w.hold("created", to, createdHold)
	}
}

// carry keeps a moved directory and all below it watched, under its new name.
func (w *Watcher) carry(from *held, here *node, name, path string) {
	switch {
	case !from.Directory:
	case from.child != nil && !w.exclude.Match(path, true) && from.child.fits(here):
		w.place(from.child, here, name)
	case from.child != nil:
		w.forget(from.child)
	default: // it was not watched where it came from
		w.follow(here, name, path)
	}
}

func (w *Watcher) tell(kind, path string, directory bool) {
	w.keep(&held{Event: Event{Type: kind, Path: path, Directory: directory}})
}

// put is where an event enters the ring, if it is wanted.
func (w *Watcher) put(e Event) {
	if e.Type == "moved" || w.wants(e) {
		w.ring.add(e)
	}
}

// wants says whether an event passes the patterns. That a directory went is always told: what was in it went too.
func (w *Watcher) wants(e Event) bool {
	if strings.HasPrefix(e.Path[strings.LastIndexByte(e.Path, '/')+1:], temporary.Prefix) || w.exclude.Match(e.Path, e.Directory) {
		return false
	}
	return len(w.include) == 0 || e.Directory && e.Type == "removed" || w.include.Match(e.Path, e.Directory)
}
