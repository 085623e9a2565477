package journal

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"

	"skerry/keeper/internal/httpwire"
)

const mappedBound = 16 * minMappedSegment

// pour writes to a pipe, in pieces of many sizes, and closes it.
func pour(t *testing.T, data []byte) int {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for rest := data; len(rest) > 0; {
			n := min(len(rest), 1+rand.IntN(200_000))
			_, _ = w.Write(rest[:n])
			rest = rest[n:]
		}
		_ = w.Close()
	}()
	fd, err := syscall.Dup(int(r.Fd())) // blocking, unlike the keeper's
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	t.Cleanup(func() { _ = syscall.Close(fd) })
	return fd
}

// pull reads a pipe to its end and counts the direct reads into a file.
func pull(t *testing.T, j *Journal, pipe int) (mapping int) {
	t.Helper()
	buffer := make([]byte, httpwire.FrameHeader+50_000)
	for {
		j.AwaitCapacity()
		n, err := j.Pull(httpwire.Stdout, pipe, 100_000)
		if err == ErrNotMapped {
			if n, err = syscall.Read(pipe, buffer[httpwire.FrameHeader:]); n > 0 {
				j.Append(httpwire.Stdout, buffer[:httpwire.FrameHeader+n])
			}
		} else if n > 0 {
			mapping++
		}
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return mapping
		}
	}
}

func random(n int) []byte {
	data := make([]byte, n)
	seed := rand.NewChaCha8([32]byte{})
	_, _ = seed.Read(data)
	return data
}

func TestMappedJournalOverwritesOldestAndKeepsOutput(t *testing.T) {
	s := store(t)
	j := s.New("p-mapped", mappedBound)
	j.StartMapping()
	data := random(3*mappedBound + 12345)
	add(j, httpwire.Stderr, "first")
	if mapping := pull(t, j, pour(t, data)); mapping < 100 {
		t.Errorf("only %d pieces were read directly into a file", mapping)
	}
	if found := files(t, s); len(found) > 17 || s.bytes.Load() > mappedBound {
		t.Errorf("%d files, %d bytes", len(found), s.bytes.Load())
	}
	all := append([]byte("first"), data...)
	kept, end := j.Kept()
	if end != int64(len(all)) || end-kept < mappedBound/2 {
		t.Errorf("kept %d to %d", kept, end)
	}
	for _, since := range []int64{kept, kept + 1, kept + mappedBound/3, end - 7, end} {
		if got := from(t, j, since); got != string(all[since:]) {
			t.Errorf("from %d: %d bytes, not the expected ones", since, len(got))
		}
	}
	j.StopMapping()
	j.Close()
	if got := from(t, j, kept); got != string(all[kept:]) {
		t.Error("the output differs after unmapping")
	}
	if open := openFiles(t, s); open != 0 {
		t.Errorf("%d files are still open", open)
	}
	j.Remove()
	if found := files(t, s); len(found) != 0 || s.bytes.Load() != 0 {
		t.Errorf("left: %q, %d bytes", found, s.bytes.Load())
	}
}

func TestPacedReaderOfMappedJournalLosesNothing(t *testing.T) {
	s := store(t)
	j := s.New("p-mapped", mappedBound)
	j.StartMapping()
	r := j.Pace()
	data := random(3 * mappedBound)
	pipe := pour(t, data)
	go func() {
		pull(t, j, pipe)
		j.StopMapping()
		j.Close()
	}()
	var got []byte
	for {
		more, ended := r.Wait(nil, nil)
		if ended {
			break
		}
		if more {
			got = append(got, text(t, r, 1+rand.Int64N(3_000_000))...)
		}
	}
	r.Close()
	if !bytes.Equal(got, data) {
		t.Errorf("got %d bytes, not the expected ones", len(got))
	}
	if open := openFiles(t, s); open != 0 {
		t.Errorf("%d files are still open", open)
	}
}

func TestTruncatedFileStopsMapping(t *testing.T) {
	s := store(t)
	j := s.New("p-mapped", mappedBound)
	j.StartMapping()
	data := random(minMappedSegment)
	pull(t, j, pour(t, data))
	for _, name := range files(t, s) {
		if err := os.Truncate(s.path+"/"+name, 100); err != nil {
			t.Fatal(err)
		}
	}
	pull(t, j, pour(t, data))
	if got := from(t, j, 0); !bytes.HasSuffix([]byte(got), data) || len(got) > minMappedSegment+1000 {
		t.Errorf("got %d bytes", len(got))
	}
}

func TestCrashLeavesNoOldBytesInOutput(t *testing.T) {
	s := store(t)
	j := s.New("p-mapped", mappedBound)
	j.StartMapping()
	whole := random(2*mappedBound + 777_777)
	pull(t, j, pour(t, whole))
	add(j, httpwire.Stderr, "the end") // while segments are mapped
	kept, end := j.Kept()
	past := NewStore(s.path)
	again := past.Open().Journal("p-mapped", 0, nil)
	if from, to := again.Kept(); from != kept || to != end {
		t.Errorf("kept %d to %d, not %d to %d", from, to, kept, end)
	}
	r, _ := again.Read(kept)
	defer r.Close()
	if got := text(t, r, math.MaxInt64); got != string(whole[kept:])+"the end" {
		t.Errorf("got %d bytes, not the expected ones", len(got))
	}
}
