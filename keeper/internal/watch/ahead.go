package watch

import "slices"

// The disk is always ahead of the notices that are still in the queue. What a scan finds may have another place than the
// notices so far have told; those that are still to come must then not be told again.

// remember keeps a name that a scan tells, so that its own notice tells nothing more. Beyond a bound it is told twice.
func (w *Watcher) remember(here *node, name string) {
	if w.toldNames >= maxTold {
		return
	}
	if here.told == nil {
		here.told = map[string]bool{}
		w.scanned = append(w.scanned, here)
	}
	here.told[name] = true
	w.toldNames++
}

// overtake is for a directory that a scan finds and that is watched already. If that is in another place, or on its way out,
// it is forgotten with all below it, to be found anew: what the notices in the queue say of it is no longer true.
func (w *Watcher) overtake(n *node, f found) bool {
	switch {
	case n.above == nil:
		return false
	case w.leaving(n):
	case n.above == f.above && n.name == f.name:
		return false
	default:
		w.settleAll()
		w.tell("removed", n.path(), true)
		if n.above.left == nil {
			n.above.left = map[string]bool{}
			w.scanned = append(w.scanned, n.above)
		}
		n.above.left[n.name] = true
	}
	w.forget(n)
	return true
}

// newer says whether a directory was read after the notice that is being taken was made. Then a going of its name is of another
// that had it before, its coming is told, and what went from it may never have been told to be there.
func (w *Watcher) newer(n *node) bool { return n != nil && w.taken <= n.since }

// replace is for a directory that a scan finds where another is known: what was in that one is not told any more.
func (w *Watcher) replace(f found) {
	if old := f.above.below[f.name]; old != nil {
		path := old.path()
		w.settleAll()
		w.tell("removed", path, true)
		w.tell("created", path, true)
	}
}

// leaving says whether a directory, or one that it lies in, is half moved: that it is gone will be told in its turn.
func (w *Watcher) leaving(n *node) bool {
	for _, h := range w.held {
		for at := n; at != nil && h.state == half && h.child != nil; at = at.above {
			if at == h.child {
				if at == n {
					h.child = nil
				}
				return true
			}
		}
	}
	return false
}

// missed is a directory that was not where the notices so far say that it is: it is gone, or one above it was moved, and the
// notices of that are still to come.
type missed struct {
	found
	tries int
}

// lookAgain is for when all notices are read. A rename and its notice are not quite one: it takes a few tries.
func (w *Watcher) lookAgain() {
	const most = 5
	again := w.missed
	w.missed = nil
	for _, m := range again {
		before := len(w.missed)
		if w.nodes[m.above.wd] == m.above && !w.gone {
			w.explore(m.above, m.name, true)
		}
		if m.tries++; len(w.missed) > before && w.missed[before].found == m.found {
			w.missed[before].tries = m.tries
			if m.tries >= most {
				w.missed = append(w.missed[:before], w.missed[before+1:]...)
			}
		}
	}
}

// miss has a directory looked for later.
func (w *Watcher) miss(f found) {
	const most = 1000
	if len(w.missed) < most {
		w.missed = append(w.missed, missed{f, 0})
	} else if w.started {
		w.ring.add(Event{Type: "overflow", Directory: true})
	}
}

// unmiss is for one that is gone, or moved and found there.
func (w *Watcher) unmiss(above *node, name string) {
	w.missed = slices.DeleteFunc(w.missed, func(m missed) bool { return m.found == found{above, name} })
}
