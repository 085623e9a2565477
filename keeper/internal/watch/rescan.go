package watch

import "slices"

const maxTries = 5

// missed is a directory that is not at its known place: it is gone, or a parent was moved and the notices are still to
// come.
type missed struct {
	found
	twice bool // it is watched at another place: the notices of its move are still to come, or it is mounted twice
	tries int
}

// looksAgain reports whether lookAgain has work without further notices.
func (w *Watcher) looksAgain() bool {
	return slices.ContainsFunc(w.missed, func(m missed) bool { return m.tries < maxTries })
}

// lookAgain runs when all notices are processed. A rename and its notices are not atomic for a path lookup, so it takes
// a few attempts. Later attempts wait until another directory was moved.
func (w *Watcher) lookAgain() {
	again, moved := w.missed, w.moved
	w.missed, w.moved = nil, false
	for _, m := range again {
		switch {
		case w.gone || w.nodes[m.above.wd] != m.above:
			continue
		case m.tries >= maxTries && !moved || m.above.halfMove() != nil || w.queue.changing(m.above.wd, m.name):
			w.missed = append(w.missed, m)
			continue
		}
		before := len(w.missed)
		w.explore(m.above, m.name, true)
		if len(w.missed) > before && w.missed[before].found == m.found {
			if w.missed[before].tries = m.tries + 1; m.tries+1 >= maxTries && w.missed[before].twice {
				w.missed = slices.Delete(w.missed, before, before+1) // the notice of a move would lead to it
			}
		}
	}
}

// miss schedules another look for a directory.
func (w *Watcher) miss(f found, twice bool) {
	const limit = 1000
	if len(w.missed) < limit {
		w.missed = append(w.missed, missed{f, twice, 0})
	} else if w.started {
		w.ring.add(Event{Type: "overflow", Directory: true})
	}
}

// cancelMissed drops a directory that is gone, or was found after a move.
func (w *Watcher) cancelMissed(above *node, name string) {
	w.missed = slices.DeleteFunc(w.missed, func(m missed) bool { return m.found == found{above, name} })
}
