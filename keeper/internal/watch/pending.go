package watch

import (
	"time"

	"skerry/keeper/internal/inotify"
)

const (
	createdHold = 50 * time.Millisecond  // a new file's first content comes with it
	movedHold   = 50 * time.Millisecond  // the other half of a move follows at once, if it does
	quiet       = 100 * time.Millisecond // of one who writes, before that is told
	writingMost = time.Second            // between two that tell of one who does not stop
	lookPause   = 20 * time.Millisecond
	maxHeld     = 1000
)

type state int

const (
	ready state = iota
	soft        // may yet be joined by what belongs to it; others may overtake it
	half        // the first half of a move: nothing after it is told before it is known what it was
	void
)

// held is an event on its way into the ring.
type held struct {
	Event
	state  state
	cookie uint32
	child  *node // the directory that was moved
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

// hold keeps an event of a file back, or lets one that is kept back already wait for what follows.
func (w *Watcher) hold(kind, path string, wait time.Duration) {
	now := time.Now()
	if h := w.byPath[path]; h != nil {
		if h.Type == "modified" {
			h.due = now.Add(wait)
			if last := h.since.Add(writingMost); h.due.After(last) {
				h.due = last
			}
		}
		return
	}
	h := &held{Event: Event{Type: kind, Path: path}, state: soft, since: now, due: now.Add(wait)}
	w.byPath[path] = h
	w.keep(h)
}

// settle lets what is kept back of a path go, and says whether there was anything.
func (w *Watcher) settle(path string) bool {
	h := w.byPath[path]
	if h == nil {
		return false
	}
	delete(w.byPath, path)
	h.state = ready
	return true
}

// settleAll does so for all paths.
func (w *Watcher) settleAll() {
	for path := range w.byPath {
		w.settle(path)
	}
}

// holdMove keeps the first half of a move back.
func (w *Watcher) holdMove(path string, n *inotify.Notice, child *node) {
	w.keep(&held{
		Event: Event{Type: "removed", Path: path, Directory: n.Directory()}, state: half, cookie: n.Cookie, child: child,
		due: time.Now().Add(movedHold),
	})
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

// release puts into the ring, in order, all that is due.
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

// releaseAll does not wait for anything.
func (w *Watcher) releaseAll() { w.release(time.Now().Add(time.Hour)) }

// decide ends an event's waiting. A move whose other half did not come went where nobody watches.
func (w *Watcher) decide(h *held) {
	if h.state == soft {
		delete(w.byPath, h.Path)
	} else if h.child != nil {
		w.forget(h.child)
	}
	h.state = ready
}

// nextDue is when something is to be told or looked for; zero: nothing waits.
func (w *Watcher) nextDue() (next time.Time) {
	if len(w.missed) > 0 {
		next = time.Now().Add(lookPause)
	}
	for _, h := range w.held {
		if h.state != ready && (next.IsZero() || h.due.Before(next)) {
			next = h.due
		}
	}
	return next
}
