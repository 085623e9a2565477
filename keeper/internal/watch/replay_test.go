package watch

import (
	"fmt"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/inotify"
	"skerry/keeper/internal/linux"
)

// chaos makes random changes in a watched directory, and moves entries between it and a directory outside.
type chaos struct {
	*rand.Rand
	inside, outside string
}

func (c *chaos) anywhere() string {
	place := c.inside
	for c.Float64() < 0.75 {
		entries, _ := os.ReadDir(place)
		var below []string
		for _, e := range entries {
			if e.IsDir() {
				below = append(below, e.Name())
			}
		}
		if len(below) == 0 {
			break
		}
		place = filepath.Join(place, below[c.Intn(len(below))])
	}
	return filepath.Join(place, string("abcdef"[c.Intn(6)]))
}

func (c *chaos) do() {
	a, b := c.anywhere(), c.anywhere()
	other := filepath.Join(c.outside, string("abc"[c.Intn(3)]))
	switch p := c.Float64(); { // many of these fail: there is nothing to move, or the target exists
	case p < 0.3:
		_ = os.MkdirAll(a, 0o777)
	case p < 0.6:
		_ = os.WriteFile(a, []byte("x"), 0o666)
	case p < 0.8:
		_ = os.Rename(a, b)
	case p < 0.85:
		_ = os.RemoveAll(a)
	case p < 0.9:
		_ = os.Rename(a, other)
	case p < 0.95:
		_ = os.Rename(other, b)
	default:
		_ = os.Remove(a)
	}
}

func newChaos(t *testing.T, seed int64) *chaos {
	dir := t.TempDir()
	c := &chaos{rand.New(rand.NewSource(seed)), dir + "/w", dir + "/out"}
	for _, d := range []string{c.inside, c.outside} {
		if err := os.Mkdir(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// present returns all entries of the watched directory.
func (c *chaos) present() []string {
	found := []string{}
	_ = filepath.WalkDir(c.inside, func(path string, _ fs.DirEntry, _ error) error {
		if path != c.inside {
			found = append(found, path[len(c.inside)+1:])
		}
		return nil
	})
	slices.Sort(found)
	return found
}

func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// replay returns the entries that exist according to the events. It checks that each event fits the earlier ones.
func replay(t *testing.T, events []Event) []string {
	alive := map[string]bool{"": true}
	exists := func(e Event, path string) {
		if !alive[path] {
			t.Errorf("%v: %q does not exist", e, path)
		}
	}
	parent := func(path string) string { return path[:max(strings.LastIndexByte(path, '/'), 0)] }
	remove := func(dir string) {
		for p := range alive {
			if within(p, dir) {
				delete(alive, p)
			}
		}
	}
	for _, e := range events {
		switch e.Type {
		case "created":
			exists(e, parent(e.Path))
			if alive[e.Path] && e.Directory {
				t.Errorf("%v: created twice", e)
			}
			alive[e.Path] = true
		case "modified":
			exists(e, e.Path)
		case "removed":
			exists(e, e.Path)
			remove(e.Path)
		case "moved":
			exists(e, e.Path)
			exists(e, parent(e.To))
			remove(e.To)
			for p := range alive {
				if within(p, e.Path) {
					delete(alive, p)
					alive[e.To+p[len(e.Path):]] = true
				}
			}
		}
	}
	delete(alive, "")
	all := []string{}
	for p := range alive {
		all = append(all, p)
	}
	slices.Sort(all)
	return all
}

// check compares the entries that exist according to the events with the disk.
func check(t *testing.T, c *chaos, events []Event) {
	t.Helper()
	for _, e := range events {
		if e.Type == "overflow" {
			t.Fatal("unexpected overflow")
		}
	}
	if got, want := replay(t, events), c.present(); !slices.Equal(got, want) {
		t.Errorf("according to the events:\n%v\non disk:\n%v", got, want)
	}
}

// seeds returns the number of random runs. SKERRY_TEST_SEEDS sets another number for a longer test.
func seeds(ordinary int) int {
	if n, err := strconv.Atoi(os.Getenv("SKERRY_TEST_SEEDS")); err == nil {
		return n
	}
	return ordinary
}

// TestReplayOfConcurrentChanges changes a directory while the watcher runs.
func TestReplayOfConcurrentChanges(t *testing.T) {
	for seed := range seeds(2) {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			c := newChaos(t, int64(seed))
			w, err := open(Options{User: &accounts.User{}, Path: c.inside, Recursive: true})
			if err != nil {
				t.Fatal(err)
			}
			defer w.close()
			for range 800 {
				if c.do(); c.Float64() < 0.05 {
					time.Sleep(3 * time.Millisecond)
				}
			}
			var events []Event
			for _, marker := range []string{"first_marker", "end"} { // events of files may be overtaken by the first
				_ = os.WriteFile(c.inside+"/"+marker, nil, 0o666)
				events = append(events, until(t, w, int64(len(events)), marker)...)
				time.Sleep(3 * createdHold)
			}
			check(t, c, events)
		})
	}
}

// until returns the events up to that of a marker.
func until(t *testing.T, w *Watcher, seq int64, marker string) (events []Event) {
	for {
		some, lost := w.after(seq, nil)
		if lost {
			t.Fatal("events are lost")
		}
		for _, e := range some {
			seq = e.Seq
			if events = append(events, e); e.Path == marker {
				return events
			}
		}
	}
}

// TestReplayOfInterleavedChanges changes a directory between the steps of the watcher. A run depends on its seed only.
func TestReplayOfInterleavedChanges(t *testing.T) {
	for seed := range seeds(20) {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			c := newChaos(t, int64(seed))
			ops, pace := 400, c.Float64()
			some := func() {
				for ops > 0 && c.Float64() < pace*pace {
					c.do()
					ops--
				}
			}
			s := newSteps(t, c)
			s.w.heartbeat = func() error { some(); return nil }
			for ops > 0 {
				c.do()
				ops--
				some()
				s.read(512)
				for !s.w.queue.empty() {
					some()
					s.w.processNext()
				}
				if s.w.process(); c.Float64() < 0.1 {
					s.w.releaseAll() // the time of all held events passes
				}
			}
			s.finish()
		})
	}
}

// steps runs a watcher step by step.
type steps struct {
	t *testing.T
	c *chaos
	w *Watcher
}

func newSteps(t *testing.T, c *chaos) *steps {
	w, err := prepare(Options{User: &accounts.User{}, Path: c.inside, Recursive: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.file.Close() })
	return &steps{t, c, w}
}

// read reads notices from the kernel without processing them.
func (s *steps) read(bytes int) {
	n, _ := syscall.Read(s.w.fd, s.w.buffer[:bytes])
	inotify.Each(s.w.buffer[:max(n, 0)], s.w.queue.add)
}

// run processes all notices. Held events stay held.
func (s *steps) run() {
	for linux.Pending(s.w.fd) > 0 {
		s.read(len(s.w.buffer))
		s.w.process()
	}
	s.w.process()
}

// finish processes everything and compares the result with the disk.
func (s *steps) finish() {
	s.t.Helper()
	s.run()
	s.w.settleAll()
	s.w.releaseAll()
	check(s.t, s.c, s.w.events)
}

// during makes a change at the next heartbeats while a directory is examined: first before it is opened, then before it
// is read, then before the notices are read.
func (s *steps) during(beat int, change func()) {
	s.w.heartbeat = func() error {
		if beat--; beat == 0 {
			change()
		}
		return nil
	}
}

func (c *chaos) mkdir(path string) { _ = os.MkdirAll(c.inside+"/"+path, 0o777) }
func (c *chaos) mv(from, to string) {
	if err := os.Rename(filepath.Join(c.inside, from), filepath.Join(c.inside, to)); err != nil {
		panic(err)
	}
}

// The second half of a move that leaves the watched directory, or enters a directory without a watch, never comes.
// Until that is known, the moved directory is still watched. Its changes were reported at its old path, after its
// removal.
func TestChangeInDirectoryThatHasLeft(t *testing.T) {
	c := newChaos(t, 0)
	s := newSteps(t, c)
	c.mkdir("d/e")
	s.run()
	c.mv("d", "../out/d")
	s.run() // the first half is held
	c.mkdir("../out/d/new")
	c.mkdir("../out/d/e/new")
	c.mv("../out/d/e", "e")
	s.finish()
}

func TestDirectoryThatHasLeftAndComesBack(t *testing.T) {
	for _, back := range []string{"d", "other"} {
		c := newChaos(t, 0)
		s := newSteps(t, c)
		c.mkdir("d/e/f")
		s.run()
		c.mv("d", "../out/d")
		s.run()
		c.mkdir("../out/d/e/new")
		c.mv("../out/d", back)
		s.finish()
	}
}

// The disk is ahead of the notices: while a new directory is examined, it or its parent moves, or another directory
// takes its name.
func TestMovesWhileDirectoryIsExamined(t *testing.T) {
	changes := map[string]func(*chaos){
		"moved":           func(c *chaos) { c.mv("p/new", "p/moved") },
		"moved away":      func(c *chaos) { c.mv("p/new", "../out/new") },
		"removed":         func(c *chaos) { _ = os.RemoveAll(c.inside + "/p/new") },
		"replaced":        func(c *chaos) { c.mv("p/new", "p/moved"); c.mv("known", "p/new") },
		"parent moved":    func(c *chaos) { c.mv("p", "q") },
		"parent replaced": func(c *chaos) { c.mv("p", "q"); c.mkdir("p/new/wrong") },
		"parent away":     func(c *chaos) { c.mv("p", "../out/p") },
		"entry moved":     func(c *chaos) { c.mv("p/new/a", "p/new/b"); c.mv("known/k", "p/new/a") },
		"entry away":      func(c *chaos) { c.mv("p/new/a", "../out/a"); c.mkdir("p/new/a/again") },
	}
	for name, change := range changes {
		for beat := 1; beat <= 6; beat++ {
			t.Run(fmt.Sprintf("%s at %d", name, beat), func(t *testing.T) {
				c := newChaos(t, 0)
				s := newSteps(t, c)
				c.mkdir("p")
				c.mkdir("known/k/l")
				s.run()
				c.mkdir("p/new/a/b")
				s.during(beat, func() { change(c) })
				s.finish()
				s.w.heartbeat = nil
				c.mkdir("p/new/x/y") // the result is watched
				c.mkdir("q/new/x/y")
				c.mkdir("p/moved/x/y")
				s.finish()
			})
		}
	}
}
