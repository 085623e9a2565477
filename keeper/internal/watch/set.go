package watch

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	most  = 16
	lives = 5 * time.Minute // without a reader
)

// ErrTooMany means that enough watchers are read already.
var ErrTooMany = errors.New("16 watchers are open in this sandbox already")

// Set is all watchers of a sandbox. One lives on for a while after its last reader left, so that a reader can ask later
// what changed meanwhile.
type Set struct {
	mu      sync.Mutex
	all     []*Watcher // the one that was left first, first
	opening int
}

// Reader is a place in a watcher's events.
type Reader struct {
	*Watcher
	set  *Set
	Seq  int64
	Lost bool // events between the token and here are gone
}

// Open watches, or goes on where a token stands. The key says whether a token is of the same wish.
func (s *Set) Open(wish Wish, key, token string) (*Reader, error) {
	if r := s.resume(key, token); r != nil {
		return r, nil
	}
	if err := s.makeRoom(); err != nil {
		return nil, err
	}
	w, err := open(wish)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opening--
	if err != nil {
		return nil, err
	}
	var id [8]byte
	_, _ = rand.Read(id[:])
	w.ID, w.key, w.readers = hex.EncodeToString(id[:]), key, 1
	s.all = append(s.all, w)
	return &Reader{w, s, w.begin(), token != ""}, nil
}

func (s *Set) resume(key, token string) *Reader {
	id, number, _ := strings.Cut(token, ".")
	seq, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.all {
		if w.ID == id && w.key == key && w.has(seq) {
			if w.readers++; w.timer != nil {
				w.timer.Stop()
				w.timer = nil
			}
			return &Reader{w, s, seq, false}
		}
	}
	return nil
}

// makeRoom takes a place, and ends the watcher that has been without a reader for longest if there are too many.
func (s *Set) makeRoom() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all)+s.opening >= most {
		free := -1
		for i, w := range s.all {
			if w.readers == 0 && free < 0 {
				free = i
			}
		}
		if free < 0 {
			return ErrTooMany
		}
		s.drop(free)
	}
	s.opening++
	return nil
}

func (s *Set) drop(i int) {
	w := s.all[i]
	s.all = append(s.all[:i:i], s.all[i+1:]...)
	if w.timer != nil {
		w.timer.Stop()
	}
	w.close()
}

// Next gives events, at least one of them until the reader is told to stop or the watched directory is gone.
func (r *Reader) Next(stop <-chan struct{}) (events []Event, lost bool) {
	events, lost = r.after(r.Seq, stop)
	if lost {
		r.Seq = r.begin()
	} else if len(events) > 0 {
		r.Seq = events[len(events)-1].Seq
	}
	return events, lost
}

// Close leaves. The watcher goes on for a while.
func (r *Reader) Close() {
	s, w := r.set, r.Watcher
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.readers--; w.readers > 0 {
		return
	}
	for i, one := range s.all { // to the end: it is the one that was left last
		if one == w {
			s.all = append(append(s.all[:i:i], s.all[i+1:]...), w)
		}
	}
	w.timer = time.AfterFunc(lives, func() { s.expire(w) })
}

func (s *Set) expire(w *Watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, one := range s.all {
		if one == w && w.readers == 0 {
			s.drop(i)
			return
		}
	}
}
