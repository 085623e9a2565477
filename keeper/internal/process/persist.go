package process

import (
	"encoding/json"
	"sync"
	"time"

	"skerry/keeper/internal/journal"
)

const (
	listName    = "list"
	maxListSize = 16 << 20 // bytes read from the list of an earlier start
	listSlack   = 1 << 20  // the list is rewritten when it exceeds twice its base size by this much
	saveDelay   = 200 * time.Millisecond
)

// persister stores the table's list on disk, so that a sandbox that was stopped and started still knows its processes.
// It writes with a short delay and many entries at a time: no command waits for it.
type persister struct {
	table    *Table
	writing  sync.Mutex // one writer at a time; taken before mu
	log      *journal.Log
	baseSize int64 // size of the log when it was last rewritten

	mu      sync.Mutex
	changed []*Process
	removed []string
	armed   bool
}

// note queues a process to be stored, at its start and at its end.
func (s *persister) note(p *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !p.queued {
		p.queued = true
		s.changed = append(s.changed, p)
	}
	s.arm()
}

// forget queues the removal of a process, if it was ever stored.
func (s *persister) forget(p *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.forgotten = true
	if p.saved {
		s.removed = append(s.removed, p.Request.ID)
		s.arm()
	}
}

func (s *persister) arm() {
	if !s.armed {
		s.armed = true
		time.AfterFunc(saveDelay, s.save)
	}
}

// save stores the queued changes. If the disk is full, it keeps them for the next change.
func (s *persister) save() {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	changed, removed := s.changed, s.removed
	s.changed, s.removed, s.armed = nil, nil, false
	for _, p := range changed {
		p.queued = false
	}
	s.mu.Unlock()
	if len(changed)+len(removed) == 0 {
		return
	}
	var lines []byte
	for _, id := range removed {
		lines = appendLine(lines, &record{ID: id, Removed: true})
	}
	for _, p := range changed {
		lines = s.describe(lines, p)
	}
	if err := s.write(lines); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.removed = append(removed, s.removed...)
		for _, p := range changed {
			if !p.queued && !p.forgotten {
				p.queued = true
				s.changed = append(s.changed, p)
			}
		}
	}
}

// describe appends the line of a process unless it was removed meanwhile. The output reaches its files before the list
// mentions it.
func (s *persister) describe(lines []byte, p *Process) []byte {
	if !p.Running() {
		p.journal.Flush()
	}
	s.mu.Lock()
	gone := p.forgotten
	p.saved = p.saved || !gone
	s.mu.Unlock()
	if gone {
		return lines
	}
	return appendLine(lines, p.record())
}

func appendLine(lines []byte, r *record) []byte {
	line, err := json.Marshal(r)
	if err != nil {
		return lines
	}
	return append(append(lines, line...), '\n')
}

func (s *persister) write(lines []byte) error {
	if s.log.Size()+int64(len(lines)) > 2*s.baseSize+listSlack {
		return s.renew()
	}
	err := s.log.Append(lines)
	if err != nil {
		if _, dropped := s.table.Journals.FreeSpace(nil); dropped {
			err = s.log.Append(lines)
		}
	}
	return err
}

// renew rewrites the list without outdated lines.
func (s *persister) renew() error {
	var lines []byte
	for _, p := range s.table.All() {
		lines = s.describe(lines, p)
	}
	err := s.log.Replace(lines)
	if err == nil {
		s.baseSize = s.log.Size()
	}
	return err
}

// Restore lists the processes of earlier starts. It is called once, before any process starts.
func (t *Table) Restore() {
	past := t.Journals.Open()
	if past == nil {
		return
	}
	defer past.Close()
	var order []string
	last := map[string]*record{}
	t.persister.log.Read(maxListSize, func(line []byte) {
		r := parse(line)
		switch {
		case r == nil:
		case r.Removed:
			delete(last, r.ID)
		case last[r.ID] != nil || len(last) < maxProcesses+maxFinished:
			if last[r.ID] == nil {
				order = append(order, r.ID)
			}
			last[r.ID] = r
		}
	})
	stopped := t.persister.log.Changed()
	for _, id := range order {
		if r := last[id]; r != nil {
			delete(last, id)
			t.take(r, past, stopped)
		}
	}
	t.trim()
	t.persister.writing.Lock()
	defer t.persister.writing.Unlock()
	_ = t.persister.renew()
}

func (t *Table) take(r *record, past *journal.Past, stopped time.Time) {
	if len(t.list) >= maxProcesses {
		return
	}
	p := r.restore(stopped)
	p.table, p.journal = t, past.Journal(r.ID, r.Offset, r.Spans)
	t.seq++
	p.seq = t.seq
	t.list[r.ID] = p
	if !r.Detach {
		t.finished = append(t.finished, p)
	}
	if r.Remove { // its end was in an earlier start
		t.remove(p)
	}
}

// trim forgets the oldest finished runs beyond the limit.
func (t *Table) trim() {
	for len(t.finished) > maxFinished {
		t.remove(t.finished[0])
	}
}

// Save stores everything that is still in memory, before the sandbox stops. Commands that have just ended get up to
// settle to report their exit.
func (t *Table) Save(settle time.Duration) {
	over := make(chan struct{})
	timer := time.AfterFunc(settle, func() { close(over) })
	defer timer.Stop()
	for last, running := t.Events.Now(); running > 0; last, running = t.Events.Now() {
		if _, more := t.Events.After(last, over); !more {
			break
		}
	}
	for _, p := range t.All() {
		p.journal.TryFlush()
	}
	t.persister.save()
}
