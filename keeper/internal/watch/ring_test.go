package watch

import "testing"

func TestReaderThatLostEventsGetsFinalEvent(t *testing.T) {
	w := &Watcher{}
	r := &Reader{Watcher: w}
	for range maxEvents + 1 {
		w.ring.add(Event{Type: "removed", Path: "x"})
	}
	w.ring.addLast(Event{Type: "removed", Directory: true})
	if _, lost := r.Next(nil); !lost {
		t.Fatal("nothing was lost")
	}
	events, lost := r.Next(nil)
	if lost || len(events) != 1 || events[0].Path != "" {
		t.Error("the removal of the directory was not reported", events, lost)
	}
	if events, lost := r.Next(nil); lost || events != nil {
		t.Error("more events after the end", events, lost)
	}
}

func TestReaderAfterEndGetsFinalEvent(t *testing.T) {
	w := &Watcher{}
	w.ring.addLast(Event{Type: "removed", Directory: true})
	r := &Reader{Watcher: w, Seq: w.begin()}
	if events, lost := r.Next(nil); lost || len(events) != 1 {
		t.Error(events, lost)
	}
}
