package process

import (
	"sync"
	"time"
)

const maxEvents = 1024 // remembered

// Event is a process's start or end.
type Event struct {
	Seq     int64
	At      time.Time
	Ended   bool
	Process *Process
}

// Events remembers the last starts and ends, in order, and counts what runs.
type Events struct {
	mu      sync.Mutex
	ring    []Event // up to maxEvents; then the next one takes the place of the oldest
	last    int64
	running int
	changed chan struct{} // closed with the next event; nil: nobody waits
}

func (e *Events) add(p *Process, ended bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last++
	event := Event{e.last, time.Now(), ended, p}
	if len(e.ring) < maxEvents {
		e.ring = append(e.ring, event)
	} else {
		e.ring[(e.last-1)%maxEvents] = event
	}
	if ended {
		e.running--
	} else {
		e.running++
	}
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

// Now is the last event's number, and how many processes ran after it.
func (e *Events) Now() (last int64, running int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last, e.running
}

// Has says whether every event after the given one is still remembered.
func (e *Events) Has(since int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.has(since)
}

func (e *Events) has(since int64) bool {
	return since <= e.last && since >= e.last-int64(len(e.ring))
}

// After returns the event after the given one. It waits for it, until it is told to stop; false, then, or if that event is
// remembered no more.
func (e *Events) After(since int64, stop <-chan struct{}) (Event, bool) {
	for {
		e.mu.Lock()
		if since < e.last {
			defer e.mu.Unlock()
			if !e.has(since) {
				return Event{}, false
			}
			return e.ring[since%maxEvents], true
		}
		if e.changed == nil {
			e.changed = make(chan struct{})
		}
		changed := e.changed
		e.mu.Unlock()
		select {
		case <-changed:
		case <-stop:
			return Event{}, false
		}
	}
}
