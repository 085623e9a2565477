package process

import "testing"

func TestEventsComeInOrderUntilDropped(t *testing.T) {
	var e Events
	for range maxEvents + 10 {
		e.add(&Process{}, false)
	}
	if last, running := e.Now(); last != maxEvents+10 || running != maxEvents+10 {
		t.Errorf("%d events, %d running", last, running)
	}
	if e.Has(9) || !e.Has(10) || !e.Has(maxEvents+10) || e.Has(maxEvents+11) {
		t.Error("wrong set of kept events")
	}
	if _, ok := e.After(9, nil); ok {
		t.Error("got a dropped event")
	}
	for seq := int64(10); seq < maxEvents+10; seq++ {
		if event, ok := e.After(seq, nil); !ok || event.Seq != seq+1 {
			t.Fatalf("after %d came %d", seq, event.Seq)
		}
	}
	stop := make(chan struct{})
	close(stop)
	if _, ok := e.After(maxEvents+10, stop); ok {
		t.Error("got an event that did not happen")
	}
}
