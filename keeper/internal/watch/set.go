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
	maxWatchers  = 16
	idleLifetime = 5 * time.Minute // without a reader
)

// ErrTooMany means that all watchers have readers.
var ErrTooMany = errors.New("16 watchers are already open in this sandbox")

// Set holds all watchers of a sandbox. A watcher lives on for a while without readers, so that a reader can resume with
// the changes since its departure.
type Set struct {
	mu      sync.Mutex
	all     []*Watcher // in the order in which their last readers left
	opening int
}

// Reader is a position in a watcher's events.
type Reader struct {
	*Watcher
	set  *Set
	Seq  int64
	Lost bool // events after the token are lost
}

// Open starts a watcher or resumes at a token. The key identifies the options: a token is valid only for the same key.
func (s *Set) Open(options Options, key, token string) (*Reader, error) {
	if r := s.resume(key, token); r != nil {
		return r, nil
	}
	if err := s.makeRoom(); err != nil {
		return nil, err
	}
	w, err := open(options)
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

// resume returns a reader at a token's position if all later events are kept.
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

// makeRoom reserves a place. If necessary it ends the watcher that has been without readers for longest.
func (s *Set) makeRoom() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all)+s.opening >= maxWatchers {
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

// Next returns events, at least one until stop is closed or the watched directory is gone.
func (r *Reader) Next(stop <-chan struct{}) (events []Event, lost bool) {
	events, lost = r.after(r.Seq, stop)
	if lost {
		r.Seq = r.begin()
	} else if len(events) > 0 {
		r.Seq = events[len(events)-1].Seq
	}
	return events, lost
}

// Close ends the reader. The watcher lives on for a while.
func (r *Reader) Close() {
	s, w := r.set, r.Watcher
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.readers--; w.readers > 0 {
		return
	}
	for i, one := range s.all { // move it to the end: its readers left last
		if one == w {
			s.all = append(append(s.all[:i:i], s.all[i+1:]...), w)
		}
	}
	w.timer = time.AfterFunc(idleLifetime, func() { s.expire(w) })
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
