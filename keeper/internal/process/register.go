package process

import (
	"encoding/json"
	"sync"
	"time"

	"skerry/keeper/internal/journal"
)

const (
	listName  = "list"
	listMost  = 16 << 20 // read of what an earlier life left
	listSlack = 1 << 20  // written since the list was last made anew, and as much again as it had then
	saveDelay = 200 * time.Millisecond
)

// register writes the table's list down, so that a sandbox that was stopped and started knows its processes again. It does so
// a little later, many at a time: no command waits for it.
type register struct {
	table   *Table
	writing sync.Mutex // one at a time; taken before mu
	log     *journal.Log
	made    int64 // the log's size when it was last made anew

	mu      sync.Mutex
	changed []*Process
	removed []string
	armed   bool
}

// note has a process written down. Its start and its end are noted.
func (r *register) note(p *Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !p.noted {
		p.noted = true
		r.changed = append(r.changed, p)
	}
	r.arm()
}

// forget has it written down that a process was removed, if it ever was written down.
func (r *register) forget(p *Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.forgotten = true
	if p.saved {
		r.removed = append(r.removed, p.Request.ID)
		r.arm()
	}
}

func (r *register) arm() {
	if !r.armed {
		r.armed = true
		time.AfterFunc(saveDelay, r.save)
	}
}

// save writes down what has changed. What can't be written now, on a full disk, is tried again with the next change.
func (r *register) save() {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.Lock()
	changed, removed := r.changed, r.removed
	r.changed, r.removed, r.armed = nil, nil, false
	for _, p := range changed {
		p.noted = false
	}
	r.mu.Unlock()
	if len(changed)+len(removed) == 0 {
		return
	}
	var lines []byte
	for _, id := range removed {
		lines = appendLine(lines, &record{ID: id, Removed: true})
	}
	for _, p := range changed {
		lines = r.describe(lines, p)
	}
	if err := r.write(lines); err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.removed = append(removed, r.removed...)
		for _, p := range changed {
			if !p.noted && !p.forgotten {
				p.noted = true
				r.changed = append(r.changed, p)
			}
		}
	}
}

// describe appends a process's line, unless it was removed meanwhile. Its output is in files before its list says so.
func (r *register) describe(lines []byte, p *Process) []byte {
	if !p.Running() {
		p.journal.Flush()
	}
	r.mu.Lock()
	gone := p.forgotten
	p.saved = p.saved || !gone
	r.mu.Unlock()
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

func (r *register) write(lines []byte) error {
	if r.log.Size()+int64(len(lines)) > 2*r.made+listSlack {
		return r.renew()
	}
	err := r.log.Append(lines)
	if err != nil {
		if _, dropped := r.table.Journals.MakeRoom(nil); dropped {
			err = r.log.Append(lines)
		}
	}
	return err
}

// renew makes the list anew, without what is no longer true.
func (r *register) renew() error {
	var lines []byte
	for _, p := range r.table.All() {
		lines = r.describe(lines, p)
	}
	err := r.log.Replace(lines)
	if err == nil {
		r.made = r.log.Size()
	}
	return err
}

// Restore lists again what an earlier life of the sandbox left. It is called once, before anything starts.
func (t *Table) Restore() {
	past := t.Journals.Open()
	if past == nil {
		return
	}
	defer past.Close()
	var order []string
	last := map[string]*record{}
	t.register.log.Read(listMost, func(line []byte) {
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
	stopped := t.register.log.Changed()
	for _, id := range order {
		if r := last[id]; r != nil {
			delete(last, id)
			t.take(r, past, stopped)
		}
	}
	t.trim()
	t.register.writing.Lock()
	defer t.register.writing.Unlock()
	_ = t.register.renew()
}

func (t *Table) take(r *record, past *journal.Past, stopped time.Time) {
	if len(t.list) >= maxProcesses {
		return
	}
	p := r.restore(stopped)
	p.table, p.journal = t, past.Journal(r.ID, r.Offset, r.Spans)
	t.turn++
	p.turn = t.turn
	t.list[r.ID] = p
	if !r.Detach {
		t.finished = append(t.finished, p)
	}
}

// trim forgets the oldest of too many finished runs.
func (t *Table) trim() {
	for len(t.finished) > maxFinished {
		t.remove(t.finished[0])
	}
}

// Save writes everything down that is still in memory: the sandbox stops. Those that have just ended get a moment to say how.
func (t *Table) Save(moment time.Duration) {
	over := make(chan struct{})
	timer := time.AfterFunc(moment, func() { close(over) })
	defer timer.Stop()
	for last, running := t.Events.Now(); running > 0; last, running = t.Events.Now() {
		if _, more := t.Events.After(last, over); !more {
			break
		}
	}
	for _, p := range t.All() {
		p.journal.TryFlush()
	}
	t.register.save()
}
