package track

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"skerry/keeper/internal/files"
	"skerry/keeper/internal/match/gitignore"
)

func TestMain(m *testing.M) {
	if err := files.Prepare(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func begin(t *testing.T) (string, *Tracker) {
	t.Helper()
	root := t.TempDir()
	tracker, err := Begin(Options{Root: root, Rules: gitignore.New(nil, nil), Large: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return root, tracker
}

func scan(t *testing.T, tracker *Tracker, since int64) (head Head, types map[string]string) {
	t.Helper()
	types = map[string]string{}
	err := tracker.Scan(since, Sink{
		Head: func(h Head) error { head = h; return nil },
		Give: func(e *Entry) error { types[e.Path] = e.Type; return nil },
		Beat: func() error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return head, types
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func openFiles(t *testing.T) int {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func TestEndedTrackerReleasesEverything(t *testing.T) {
	_, first := begin(t) // allocates everything that is allocated only once
	scan(t, first, 0)
	first.End()
	time.Sleep(50 * time.Millisecond)
	routines, fds := runtime.NumGoroutine(), openFiles(t)
	for range 20 {
		_, tracker := begin(t)
		for range 3 {
			scan(t, tracker, 0)
		}
		waited := make(chan error)
		go func() {
			_, err := tracker.Wait(1<<40, time.Second, time.Second)
			waited <- err
		}()
		tracker.End()
		if err := <-waited; !errors.Is(err, ErrUnknown) {
			t.Error("a wait did not end:", err)
		}
	}
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > routines || openFiles(t) > fds; {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines and %d files, %d and %d before", runtime.NumGoroutine(), openFiles(t), routines, fds)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestRepeatedScanReportsTheSameChanges(t *testing.T) {
	root, tracker := begin(t)
	defer tracker.End()
	head, _ := scan(t, tracker, 0)
	write(t, filepath.Join(root, "a"))
	for range 3 {
		next, types := scan(t, tracker, head.Seq)
		if next.Full || len(types) != 1 || types["a"] != "file" {
			t.Fatal(next, types)
		}
	}
	next, _ := scan(t, tracker, head.Seq)
	if after, types := scan(t, tracker, next.Seq); after.Full || len(types) != 0 {
		t.Error("reported again:", types)
	}
	if early, types := scan(t, tracker, 0); !early.Full || len(types) != 1 {
		t.Error("not everything was reported:", types)
	}
	if future, _ := scan(t, tracker, 1<<40); !future.Full {
		t.Error("a number from the future was accepted")
	}
}

func TestInterruptedScanIsRepeated(t *testing.T) {
	root, tracker := begin(t)
	defer tracker.End()
	for i := range 1000 {
		write(t, filepath.Join(root, strconv.Itoa(i)))
	}
	head, _ := scan(t, tracker, 0)
	for i := range 1000 {
		write(t, filepath.Join(root, strconv.Itoa(i)))
	}
	broken := errors.New("gone")
	for _, since := range []int64{0, head.Seq} {
		given := 0
		err := tracker.Scan(since, Sink{
			Head: func(Head) error { return nil },
			Give: func(*Entry) error {
				if given++; given == 300 {
					return broken
				}
				return nil
			},
			Beat: func() error { return nil },
		})
		if err != broken {
			t.Fatal(err)
		}
		if _, types := scan(t, tracker, since); len(types) != 1000 {
			t.Error("reported:", len(types))
		}
	}
}

func TestHardLinkedFileIsReportedUnderAllNames(t *testing.T) {
	root, tracker := begin(t)
	defer tracker.End()
	write(t, filepath.Join(root, "a"))
	if err := os.MkdirAll(filepath.Join(root, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(root, "a"), filepath.Join(root, "d/b")); err != nil {
		t.Fatal(err)
	}
	head, _ := scan(t, tracker, 0)
	time.Sleep(20 * time.Millisecond)
	write(t, filepath.Join(root, "d/b"))
	next, types := scan(t, tracker, head.Seq)
	if len(types) != 2 {
		t.Error("reported:", types)
	}
	_ = os.Remove(filepath.Join(root, "d/b"))
	next, _ = scan(t, tracker, next.Seq)
	if next, _ = scan(t, tracker, next.Seq); tracker.watchSet.links > 1 {
		t.Error("remembered:", tracker.watchSet.links)
	}
	if _, types := scan(t, tracker, next.Seq); len(types) != 0 {
		t.Error("reported:", types)
	}
}
