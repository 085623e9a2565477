package watch

import "sync"

const (
	maxEvents = 10_000
	maxText   = 4 << 20 // bytes of all paths
)

// Event is a change below a watched directory. Paths are relative to it; "" is the directory itself.
type Event struct {
	Seq       int64
	Type      string
	Path      string
	To        string // of a move
	Directory bool
}

// ring holds the last events for slow or returning readers.
type ring struct {
	mu      sync.Mutex
	events  []Event
	last    int64
	text    int
	ended   bool
	changed chan struct{} // closed with the next event; nil: no waiter
}

func (r *ring) add(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.append(e)
}

// addLast adds the final event.
func (r *ring) addLast(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.append(e)
}

func (r *ring) append(e Event) {
	r.last++
	e.Seq = r.last
	r.text += len(e.Path) + len(e.To)
	r.events = append(r.events, e)
	for len(r.events) > maxEvents || r.text > maxText {
		r.text -= len(r.events[0].Path) + len(r.events[0].To)
		r.events[0] = Event{}
		r.events = r.events[1:]
	}
	r.wake()
}

// end wakes the readers: no event follows.
func (r *ring) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.wake()
}

func (r *ring) wake() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// begin returns the start position of a new reader: the end or, if the ring has ended, before the final event.
func (r *ring) begin() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended && len(r.events) > 0 {
		return r.last - 1
	}
	return r.last
}

// has reports whether a reader can continue after an event: all later events are kept, and one exists or may come.
func (r *ring) has(since int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return since <= r.last && since >= r.last-int64(len(r.events)) && !(r.ended && since == r.last)
}

// after returns the events after a position, at least one unless stop is closed or the ring has ended.
func (r *ring) after(since int64, stop <-chan struct{}) (events []Event, lost bool) {
	for {
		r.mu.Lock()
		if gone := r.last - int64(len(r.events)); since < gone || since > r.last {
			defer r.mu.Unlock()
			return nil, true
		} else if since < r.last {
			defer r.mu.Unlock()
			return firstBatch(r.events[since-gone:]), false
		}
		if r.ended {
			r.mu.Unlock()
			return nil, false
		}
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-stop:
			return nil, false
		}
	}
}

// firstBatch returns the events to send at once.
func firstBatch(all []Event) []Event {
	const maxCount, text = 256, 64 << 10
	size := 0
	for i, e := range all {
		if size += len(e.Path) + len(e.To); i > 0 && (i >= maxCount || size > text) {
			all = all[:i]
			break
		}
	}
	return append([]Event(nil), all...)
}
