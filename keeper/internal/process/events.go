package process

import (
	"sync"
	"time"
)

const maxEvents = 1024 // kept in memory

// Event is the start or the end of a process.
type Event struct {
	Seq     int64
	At      time.Time
	Ended   bool
	Process *Process
}

// Events keeps the last starts and ends in order, and counts running processes.
type Events struct {
	mu      sync.Mutex
	ring    []Event // when it is full, the next event replaces the oldest
	last    int64
	running int
	changed chan struct{} // closed with the next event; nil: no waiter
}

// add records an event and wakes the waiters.
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

// Now returns the number of the last event and the number of processes running after it.
func (e *Events) Now() (last int64, running int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last, e.running
}

// Has reports whether every event after the given one is still kept.
func (e *Events) Has(since int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.hasAllSince(since)
}

func (e *Events) hasAllSince(since int64) bool {
	return since <= e.last && since >= e.last-int64(len(e.ring))
}

// After returns the event after the given one and waits for it if necessary. It returns false when stop is closed or
// when that event is no longer kept.
func (e *Events) After(since int64, stop <-chan struct{}) (Event, bool) {
	for {
		e.mu.Lock()
		if since < e.last {
			defer e.mu.Unlock()
			if !e.hasAllSince(since) {
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
