package watch

import (
	"time"

	"skerry/keeper/internal/inotify"
)

const (
	createdHold    = 50 * time.Millisecond  // a new file is reported with its first content
	movedHold      = 50 * time.Millisecond  // the other half of a move follows at once or never
	quiet          = 100 * time.Millisecond // pause in writing before it is reported
	maxWritingHold = time.Second            // longest delay for a file that is written continuously
	lookPause      = 20 * time.Millisecond
	maxHeld        = 1000
)

type state int

const (
	ready state = iota
	soft        // may be merged with following notices; later events may overtake it
	half        // the first half of a move: no later event is reported before it is decided
	void
)

// held is an event waiting for the ring.
type held struct {
	Event
	state  state
	cookie uint32
	child  *node // the moved directory
	since  time.Time
	due    time.Time
}

func (w *Watcher) keep(h *held) {
	w.held = append(w.held, h)
	if len(w.held) > maxHeld {
		w.release(time.Now())
	}
	if len(w.held) > maxHeld {
		w.releaseAll()
	}
}

// hold delays an event of a file, or extends the delay of one that is already held.
func (w *Watcher) hold(kind, path string, wait time.Duration) {
	now := time.Now()
	if h := w.byPath[path]; h != nil {
		if h.Type == "modified" {
			h.due = now.Add(wait)
			if last := h.since.Add(maxWritingHold); h.due.After(last) {
				h.due = last
			}
		}
		return
	}
	h := &held{Event: Event{Type: kind, Path: path}, state: soft, since: now, due: now.Add(wait)}
	w.byPath[path] = h
	w.keep(h)
}

// settle releases the held event of a path and reports whether there was one.
func (w *Watcher) settle(path string) bool {
	h := w.byPath[path]
	if h == nil {
		return false
	}
	delete(w.byPath, path)
	h.state = ready
	return true
}

// settleAll releases all held events.
func (w *Watcher) settleAll() {
	for path := range w.byPath {
		w.settle(path)
	}
}

// holdMove holds the first half of a move.
func (w *Watcher) holdMove(path string, n *inotify.Notice, child *node) {
	h := &held{
		Event: Event{Type: "removed", Path: path, Directory: n.Directory()}, state: half, cookie: n.Cookie, child: child,
		due: time.Now().Add(movedHold),
	}
	if child != nil {
		child.leaving = h
	}
	w.keep(h)
}

// takeMove finds the first half of a move.
func (w *Watcher) takeMove(cookie uint32) *held {
	for _, h := range w.held {
		if h.state == half && h.cookie == cookie {
			return h
		}
	}
	return nil
}

// release moves all due events to the ring, in order.
func (w *Watcher) release(now time.Time) {
	rest, blocked := w.held[:0], false
	for _, h := range w.held {
		if (h.state == soft || h.state == half) && !h.due.After(now) {
			w.decide(h)
		}
		blocked = blocked || h.state == half
		switch {
		case h.state == void:
		case h.state == ready && !blocked:
			w.put(h.Event)
		default:
			rest = append(rest, h)
		}
	}
	clear(w.held[len(rest):])
	w.held = rest
}

// releaseAll releases without waiting.
func (w *Watcher) releaseAll() { w.release(time.Now().Add(time.Hour)) }

// decide ends the wait of an event. A move without a second half left the watched directory.
func (w *Watcher) decide(h *held) {
	if h.state == soft {
		delete(w.byPath, h.Path)
	} else if h.child != nil {
		w.forget(h.child)
	}
	h.state = ready
}

// endHalfMoves stops waiting for the second half of a move of a directory or one of its parents. It reports whether it
// did: then the directory is forgotten.
func (w *Watcher) endHalfMoves(n *node) bool {
	h := n.halfMove()
	if h != nil {
		w.decide(h)
	}
	return h != nil
}

// nextDue returns the time of the next event or rescan; zero: none.
func (w *Watcher) nextDue() (next time.Time) {
	if w.looksAgain() {
		next = time.Now().Add(lookPause)
	}
	for _, h := range w.held {
		if h.state != ready && (next.IsZero() || h.due.Before(next)) {
			next = h.due
		}
	}
	return next
}
