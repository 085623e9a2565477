package watch

import "sync"

const (
	maxEvents = 10_000
	maxText   = 4 << 20 // of all their paths
)

// Event is a change below a watched directory. Paths are relative to it; "" is the directory itself.
type Event struct {
	Seq       int64
	Type      string
	Path      string
	To        string // of a move
	Directory bool
}

// ring holds the last events for readers that are slow, or were away.
type ring struct {
	mu     sync.Mutex
	events []Event
	last   int64
	text   int
	ended  bool
	news   chan struct{} // closed with the next event; nil: nobody waits
}

func (r *ring) add(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.append(e)
}

// addLast adds the event after which there is none.
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

// end tells readers that there will be no more.
func (r *ring) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.wake()
}

func (r *ring) wake() {
	if r.news != nil {
		close(r.news)
		r.news = nil
	}
}

// begin is where a reader begins now: at the end; or, when there is an end to be told, before that.
func (r *ring) begin() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended && len(r.events) > 0 {
		return r.last - 1
	}
	return r.last
}

// has says whether a reader can go on from an event: all after it are still there, and one is or may come.
func (r *ring) has(since int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return since <= r.last && since >= r.last-int64(len(r.events)) && !(r.ended && since == r.last)
}

// after gives the events after one, at least one of them unless it is told to stop or there are no more to come.
func (r *ring) after(since int64, stop <-chan struct{}) (events []Event, lost bool) {
	for {
		r.mu.Lock()
		if gone := r.last - int64(len(r.events)); since < gone || since > r.last {
			defer r.mu.Unlock()
			return nil, true
		} else if since < r.last {
			defer r.mu.Unlock()
			return some(r.events[since-gone:]), false
		}
		if r.ended {
			r.mu.Unlock()
			return nil, false
		}
		if r.news == nil {
			r.news = make(chan struct{})
		}
		news := r.news
		r.mu.Unlock()
		select {
		case <-news:
		case <-stop:
			return nil, false
		}
	}
}

// some are as many of the first events as are sent at once.
func some(all []Event) []Event {
	const most, text = 256, 64 << 10
	size := 0
	for i, e := range all {
		if size += len(e.Path) + len(e.To); i > 0 && (i >= most || size > text) {
			all = all[:i]
			break
		}
	}
	return append([]Event(nil), all...)
}
