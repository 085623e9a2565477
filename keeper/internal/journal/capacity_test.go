package journal

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"skerry/keeper/internal/httpwire"
)

func TestPacedReaderLosesNothingWithoutDisk(t *testing.T) {
	s := NewStore("/proc/nowhere/skerry/processes")
	j := s.New("p-none", 0)
	r := j.Pace()
	go func() {
		for range 50 {
			j.AwaitCapacity()
			add(j, httpwire.Stdout, string(bytes.Repeat([]byte("x"), 5000)))
		}
		add(j, httpwire.Stdout, "end")
		j.Close()
	}()
	total := 0
	for {
		more, ended := r.Wait(nil, nil)
		if ended {
			break
		}
		if more {
			total += len(text(t, r, math.MaxInt64))
		}
	}
	r.Close()
	if total != 250_003 {
		t.Errorf("got %d bytes", total)
	}
}

func TestLastBytesAreKeptWithoutDisk(t *testing.T) {
	j := NewStore("/proc/nowhere/skerry/processes").New("p-none", 0)
	for range 50 {
		add(j, httpwire.Stdout, string(bytes.Repeat([]byte("x"), 5000)))
	}
	add(j, httpwire.Stderr, "the end")
	if got := from(t, j, 0); got != "<250000>the end" {
		t.Errorf("got %.40q", got)
	}
}

func TestFinishedProcessesUseLittleMemoryWithoutDisk(t *testing.T) {
	s := NewStore("/proc/nowhere/skerry/processes")
	var all []*Journal
	for range 200 {
		j := s.New("p-none", 0)
		add(j, httpwire.Stdout, string(bytes.Repeat([]byte("x"), 4000)))
		j.Close()
		j.Flush()
		all = append(all, j)
	}
	held := int64(0)
	for _, j := range all {
		held += int64(len(j.tail))
	}
	if held != s.parked.Load() || held > maxParked || held < maxParked/2 {
		t.Errorf("%d bytes in memory, %d counted", held, s.parked.Load())
	}
	for _, j := range all {
		j.Remove()
	}
	if s.parked.Load() != 0 {
		t.Errorf("%d bytes counted for nothing", s.parked.Load())
	}
}

func TestSandboxBoundDropsFinishedProcessesFirst(t *testing.T) {
	s := store(t)
	s.SetBounds(0, 1<<20)
	old, next, last := s.New("p-old", 0), s.New("p-next", 0), s.New("p-last", 0)
	block := string(bytes.Repeat([]byte("x"), 10_000))
	for range 30 {
		add(old, httpwire.Stdout, block)
		add(next, httpwire.Stdout, block)
	}
	old.Close()
	for range 60 {
		add(last, httpwire.Stdout, block)
	}
	if from, end := old.Kept(); from == 0 || end != 300_000 {
		t.Errorf("the finished process kept %d to %d", from, end)
	}
	for _, j := range []*Journal{next, last} {
		if from, _ := j.Kept(); from != 0 {
			t.Errorf("a running process lost %d bytes", from)
		}
	}
	if s.bytes.Load() > 1<<20 {
		t.Errorf("%d bytes on disk", s.bytes.Load())
	}
}

// small returns a store on a disk of the given size.
func small(t *testing.T, size string) *Store {
	t.Helper()
	s := store(t)
	dir, err := makeDirectory(s.path)
	if err != nil {
		t.Fatal(err)
	}
	_ = syscall.Close(dir)
	if err := syscall.Mount("tmpfs", s.path, "tmpfs", 0, "mode=700,size="+size); err != nil {
		t.Skip("mounting a small disk: ", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(s.path, syscall.MNT_DETACH) })
	return s
}

// others fills a store's disk except for `leave` bytes; back frees the space.
func others(t *testing.T, s *Store, leave int64) (back func()) {
	t.Helper()
	name := filepath.Join(s.path, "others")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	size := int64(0)
	for ; err == nil; size += 4096 {
		_, err = file.Write(make([]byte, 4096))
	}
	if err := file.Truncate(max(0, size-4096-leave)); err != nil {
		t.Fatal(err)
	}
	return func() { _ = os.Remove(name) }
}

func TestLargeFrameReplacesManySmallSegmentsOnFullDisk(t *testing.T) {
	s := small(t, "1m")
	for _, held := range []bool{false, true} { // true: a reader holds the oldest file open, so its space is not freed
		j := s.New("p-full", 0)
		var all strings.Builder
		print := func(size int) {
			piece := strings.Repeat(string(rune('a'+all.Len()%26)), size)
			all.WriteString(piece)
			add(j, httpwire.Stdout, piece)
		}
		print(10_000)
		back := others(t, s, 64<<10)
		for range 300 {
			print(4001)
		}
		back()
		for range 150 {
			print(4001)
		}
		kept, _ := j.Kept()
		r, err := j.Read(kept)
		if err != nil {
			t.Fatal(err)
		}
		if held {
			r.Next(make([]byte, 64), 1)
		}
		back = others(t, s, 0)
		for range 8 {
			print(256 << 10)
			kept, end := j.Kept()
			if got := from(t, j, kept); got != all.String()[kept:] || end-kept < 256<<10 {
				t.Fatalf("of %d bytes from %d on, %d are there (held: %v)", end, kept, len(got), held)
			}
			print(10)
		}
		back()
		r.Close()
		j.Remove()
	}
}
