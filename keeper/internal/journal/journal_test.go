package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"skerry/keeper/internal/httpwire"
)

func store(t *testing.T) *Store {
	t.Helper()
	s := NewStore(filepath.Join(t.TempDir(), "skerry", "processes"))
	t.Cleanup(func() {
		if fd := s.directory(); fd >= 0 {
			_ = syscall.Close(fd)
		}
	})
	return s
}

func add(j *Journal, kind byte, data string) {
	j.Append(kind, append(make([]byte, httpwire.FrameHeader), data...))
}

// text reads everything that a reader returns; a gap is shown as <n>.
func text(t *testing.T, r *Reader, limit int64) string {
	t.Helper()
	window := make([]byte, 64)
	var all []byte
	for limit > 0 {
		if more, _ := r.More(); !more {
			break
		}
		p := r.Next(window, limit)
		if p.Missing > 0 {
			all = append(all, fmt.Sprintf("<%d>", p.Missing)...)
			continue
		}
		frames := append([]byte{}, p.Frames...)
		rest := make([]byte, p.Rest.Size)
		if p.Rest.Size > 0 && readAt(p.Rest.FD, rest, p.Rest.At) != len(rest) {
			t.Fatal("the file is short")
		}
		frames = append(frames, rest...)
		got := int64(0)
		for len(frames) > 0 {
			n := binary.BigEndian.Uint32(frames[1:])
			all = append(all, frames[httpwire.FrameHeader:httpwire.FrameHeader+n]...)
			frames = frames[httpwire.FrameHeader+n:]
			got += int64(n)
		}
		if got != p.Data {
			t.Fatalf("got %d bytes, announced %d", got, p.Data)
		}
		limit -= got
	}
	return string(all)
}

func from(t *testing.T, j *Journal, since int64) string {
	t.Helper()
	r, err := j.Read(since)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	return text(t, r, math.MaxInt64)
}

func files(t *testing.T, s *Store) []string {
	t.Helper()
	entries, err := os.ReadDir(s.path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestSmallOutputStaysInMemoryUntilFlushed(t *testing.T) {
	s := store(t)
	j := s.New("p-one", 0)
	add(j, httpwire.Stdout, "hello ")
	add(j, httpwire.Stderr, "world")
	if got := from(t, j, 0) + "|" + from(t, j, 3) + "|" + from(t, j, 8) + "|" + from(t, j, -2); got != "hello world|lo world|rld|ld" {
		t.Errorf("got %q", got)
	}
	if found := files(t, s); len(found) != 0 {
		t.Errorf("files: %q", found)
	}
	j.Close()
	j.Flush()
	if got := from(t, j, 3); got != "lo world" {
		t.Errorf("got %q after the flush", got)
	}
	if found := files(t, s); len(found) != 1 || found[0] != "p-one.0000000000000000" {
		t.Errorf("files: %q", found)
	}
	j.Remove()
	if found := files(t, s); len(found) != 0 || s.bytes.Load() != 0 {
		t.Errorf("left: %q, %d bytes", found, s.bytes.Load())
	}
}

func TestReaderStartsAndEndsAtAnyOffset(t *testing.T) {
	s := store(t)
	j := s.New("p-any", 1<<20)
	var all []byte
	for i := range 200 {
		piece := bytes.Repeat([]byte{byte('a' + i%26)}, 1+rand.IntN(1+i*i/10))
		add(j, httpwire.Stdout+byte(i%2), string(piece))
		all = append(all, piece...)
	}
	for range 300 {
		since := rand.Int64N(int64(len(all)) + 1)
		limit := 1 + rand.Int64N(5000)
		r, err := j.Read(since)
		if err != nil {
			t.Fatal(err)
		}
		want := all[since:min(int64(len(all)), since+limit)]
		if got := text(t, r, limit); got != string(want) {
			t.Fatalf("from %d, %d bytes: got %d different bytes", since, limit, len(got))
		}
		r.Close()
	}
	if _, err := j.Read(int64(len(all)) + 1); err != ErrRange {
		t.Errorf("beyond the end: %v", err)
	}
}

func TestOldestIsDroppedAndReportedMissing(t *testing.T) {
	s := store(t)
	j := s.New("p-old", minBound)
	r, _ := j.Read(0)
	for range 100 {
		add(j, httpwire.Stdout, string(bytes.Repeat([]byte("x"), 5000)))
	}
	kept, end := j.Kept()
	if end != 500_000 || end-kept > minBound || end-kept < minBound/2 || kept%5000 != 0 {
		t.Errorf("kept %d of %d", end-kept, end)
	}
	if got := text(t, r, math.MaxInt64); got != fmt.Sprintf("<%d>%s", kept, bytes.Repeat([]byte("x"), int(end-kept))) {
		t.Errorf("got %.40q, kept from %d", got, kept)
	}
	if got := from(t, j, -1<<40); int64(len(got)) != end-kept {
		t.Errorf("everything: %d bytes", len(got))
	}
	r.Close()
	j.Close()
	if open := openFiles(t, s); open != 0 {
		t.Errorf("%d files are still open", open)
	}
	j.Remove()
	if found := files(t, s); len(found) != 0 || s.bytes.Load() != 0 {
		t.Errorf("left: %q, %d bytes", found, s.bytes.Load())
	}
}

func openFiles(t *testing.T, s *Store) int {
	t.Helper()
	entries, _ := os.ReadDir("/proc/self/fd")
	n := 0
	for _, e := range entries {
		if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); filepath.Dir(to) == s.path {
			n++
		}
	}
	return n
}

func TestWriterWaitsForPacedReader(t *testing.T) {
	s := store(t)
	j := s.New("p-pace", minBound)
	r := j.Pace()
	done := make(chan int)
	go func() {
		n := 0
		for range 100 {
			j.AwaitCapacity()
			add(j, httpwire.Stdout, string(bytes.Repeat([]byte("x"), 5000)))
			n++
		}
		j.Close()
		close(done)
	}()
	time.Sleep(20 * time.Millisecond)
	if _, end := j.Kept(); end > minBound {
		t.Errorf("the writer is %d bytes ahead", end)
	}
	total := 0
	for {
		more, ended := r.Wait(nil, nil)
		if ended {
			break
		}
		if more {
			total += len(text(t, r, 3333))
		}
	}
	<-done
	r.Close()
	if total != 500_000 {
		t.Errorf("got %d bytes", total)
	}
}

func TestWriterWaitsForReaderThatBeginsToPace(t *testing.T) {
	s := store(t)
	j := s.New("p-pace", minBound)
	add(j, httpwire.Stdout, "first")
	r, err := j.Read(0)
	if err != nil {
		t.Fatal(err)
	}
	j.PaceFrom(r)
	second, err := j.Read(0)
	if err != nil {
		t.Fatal(err)
	}
	j.PaceFrom(second) // another reader paces: this one may fall behind
	second.Close()
	done := make(chan struct{})
	go func() {
		for range 100 {
			j.AwaitCapacity()
			add(j, httpwire.Stdout, string(bytes.Repeat([]byte("x"), 5000)))
		}
		j.Close()
		close(done)
	}()
	total := 0
	for {
		more, ended := r.Wait(nil, nil)
		if ended {
			break
		}
		if more {
			total += len(text(t, r, 3333))
		}
	}
	<-done
	if total != 500_005 {
		t.Errorf("got %d bytes", total)
	}
	r.Close()
	if open := openFiles(t, s); open != 0 {
		t.Errorf("%d files are still open", open)
	}
}

func TestClosedReaderPacesNoWriter(t *testing.T) {
	j := store(t).New("p-pace", minBound)
	r, err := j.Read(0)
	if err != nil {
		t.Fatal(err)
	}
	j.PaceFrom(r)
	r.Close()
	for range 100 {
		j.AwaitCapacity()
		add(j, httpwire.Stdout, string(bytes.Repeat([]byte("x"), 5000)))
	}
}

func TestFrameWithChangedHeaderIsCorrupt(t *testing.T) {
	r := &Reader{seg: &segment{fd: -1}, skip: 20}
	if _, err := r.cut(make([]byte, 64), frame{httpwire.Stdout, 10}, 100); err != errCorrupt {
		t.Error(err)
	}
}

func TestOversizedFrameIsCorrupt(t *testing.T) {
	head := make([]byte, httpwire.FrameHeader)
	for size, want := range map[int]error{maxFrame: nil, maxFrame + 1: errCorrupt} {
		httpwire.PutHeaderSize(head, httpwire.Stdout, size)
		if _, err := frameIn(head, 1<<30); err != want {
			t.Error(size, err)
		}
	}
}
