package journal

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"skerry/keeper/internal/httpwire"
)

func TestExchangeStartsAfterEarlierOutputAndLosesNothing(t *testing.T) {
	j := store(t).New("p-exchange", minBound)
	for range 100 { // the writer waits for no reader
		j.AwaitCapacity()
		add(j, httpwire.Stdout, strings.Repeat("o", 5000))
	}
	r := j.PaceNow()
	if r.Offset() != 500_000 {
		t.Fatalf("it starts at %d", r.Offset())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 100 {
			j.AwaitCapacity()
			add(j, httpwire.Channel, strings.Repeat("n", 5000))
		}
	}()
	total := 0
	for total < 500_000 {
		if more, _ := r.Wait(nil, nil); more {
			got := text(t, r, 3333)
			if strings.Trim(got, "n") != "" {
				t.Fatalf("got %.40q", got)
			}
			total += len(got)
		}
	}
	<-done
	r.Close()
	for range 100 {
		j.AwaitCapacity()
		add(j, httpwire.Channel, strings.Repeat("l", 5000))
	}
}

func TestWaitEndsWithEitherChannel(t *testing.T) {
	r := store(t).New("p-exchange", 0).PaceNow()
	over := make(chan struct{})
	close(over)
	if more, ended := r.Wait(over, nil); more || ended {
		t.Error("there is something to read")
	}
	if more, ended := r.Wait(nil, over); more || ended {
		t.Error("there is something to read")
	}
}

func TestChannelOutputIsRestored(t *testing.T) {
	s := store(t)
	j := s.New("p-said", 0)
	add(j, httpwire.Stdout, "printed ")
	add(j, httpwire.Channel, strings.Repeat("said ", 2000))
	add(j, httpwire.Stderr, "printed")
	j.Close()
	j.Flush()
	want := "printed " + strings.Repeat("said ", 2000) + "printed"
	for _, spans := range [][]Span{nil, j.Spans()} {
		past := s.Open()
		again := past.Journal("p-said", 0, spans)
		if got := from(t, again, 0); got != want {
			t.Errorf("got %.40q", got)
		}
	}
}

func TestInvalidFramesAreCorrupt(t *testing.T) {
	head := bytes.Repeat([]byte{1}, httpwire.FrameHeader)
	for kind := range math.MaxUint8 {
		httpwire.PutHeaderSize(head, byte(kind), 1)
		_, err := frameIn(head, 1<<30)
		if output := kind == 1 || kind == 2 || kind == 7; output != (err == nil) {
			t.Error(kind, err)
		}
	}
}
