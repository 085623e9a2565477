package journal

import (
	"bytes"
	"math"
	"testing"

	"skerry/keeper/internal/wire"
)

func TestWithoutADiskAPacedReaderStillGetsEverything(t *testing.T) {
	s := NewStore("/proc/nowhere/skerry/processes")
	j := s.New("p-none", 0)
	r := j.Pace()
	go func() {
		for range 50 {
			j.Await()
			add(j, wire.Stdout, string(bytes.Repeat([]byte("x"), 5000)))
		}
		add(j, wire.Stdout, "end")
		j.Close()
	}()
	total := 0
	for {
		more, ended := r.Wait(nil)
		if ended {
			break
		}
		if more {
			total += len(text(t, r, math.MaxInt64))
		}
	}
	r.Close()
	if total != 250_003 {
		t.Errorf("%d bytes came", total)
	}
}

func TestWithoutADiskTheLastBytesAreKept(t *testing.T) {
	j := NewStore("/proc/nowhere/skerry/processes").New("p-none", 0)
	for range 50 {
		add(j, wire.Stdout, string(bytes.Repeat([]byte("x"), 5000)))
	}
	add(j, wire.Stderr, "the end")
	if got := from(t, j, 0); got != "<250000>the end" {
		t.Errorf("got %.40q", got)
	}
}

func TestWithoutADiskFinishedProcessesTakeLittleMemory(t *testing.T) {
	s := NewStore("/proc/nowhere/skerry/processes")
	var all []*Journal
	for range 200 {
		j := s.New("p-none", 0)
		add(j, wire.Stdout, string(bytes.Repeat([]byte("x"), 4000)))
		j.Close()
		j.Flush()
		all = append(all, j)
	}
	held := int64(0)
	for _, j := range all {
		held += int64(len(j.tail))
	}
	if held != s.parked.Load() || held > parkedMost || held < parkedMost/2 {
		t.Errorf("%d bytes in memory, %d counted", held, s.parked.Load())
	}
	for _, j := range all {
		j.Remove()
	}
	if s.parked.Load() != 0 {
		t.Errorf("%d bytes counted of nothing", s.parked.Load())
	}
}

func TestTheBoundOfTheSandboxIsPaidByTheFinished(t *testing.T) {
	s := store(t)
	s.SetBounds(0, 1<<20)
	old, next, last := s.New("p-old", 0), s.New("p-next", 0), s.New("p-last", 0)
	block := string(bytes.Repeat([]byte("x"), 10_000))
	for range 30 {
		add(old, wire.Stdout, block)
		add(next, wire.Stdout, block)
	}
	old.Close()
	for range 60 {
		add(last, wire.Stdout, block)
	}
	if from, end := old.Kept(); from == 0 || end != 300_000 {
		t.Errorf("the finished one kept %d to %d", from, end)
	}
	for _, j := range []*Journal{next, last} {
		if from, _ := j.Kept(); from != 0 {
			t.Errorf("a running one lost %d bytes", from)
		}
	}
	if s.bytes.Load() > 1<<20 {
		t.Errorf("%d bytes on disk", s.bytes.Load())
	}
}
