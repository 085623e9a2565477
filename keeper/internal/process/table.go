package process

import (
	"errors"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"skerry/keeper/internal/journal"
	"skerry/keeper/internal/pool"
)

const (
	maxProcesses = 4096 // known at one time
	maxFinished  = 1024 // runs that have ended, with nothing left of them
)

// Errors of the table.
var (
	ErrTaken   = errors.New("this id is taken")
	ErrTooMany = errors.New("4,096 processes are listed, the most there can be: remove finished ones")
)

const maxShown = 1024 // bytes of a command line in a list

// shorten keeps what lists show of the command, and lets the rest go: a finished process stays known for long.
func (p *Process) shorten() {
	room := maxShown
	line, words := p.Request.Shell, p.Request.Argv
	if p.Request.Show != nil {
		line, words = p.Request.Show, nil
	}
	for _, word := range words {
		if room -= len(word) + 1; room < 0 {
			p.Argv = append(p.Argv, strings.ToValidUTF8(word[:max(0, len(word)+room)], "")+"…")
			break
		}
		p.Argv = append(p.Argv, word)
	}
	if line != nil {
		p.Shell = line
		if len(*line) > maxShown {
			short := strings.ToValidUTF8((*line)[:maxShown], "") + "…"
			p.Shell = &short
		}
	}
	name := p.Name()
	p.Request = &Request{ID: p.Request.ID, Detach: p.Request.Detach, Session: p.Request.Session, Argv: []string{name}}
}

// Name is the program's.
func (p *Process) Name() string {
	if len(p.Request.Argv) == 0 {
		return "shell"
	}
	return strings.Clone(p.Request.Argv[0][:min(len(p.Request.Argv[0]), maxShown)])
}

// Table knows every process that was asked for, running or finished.
type Table struct {
	Pool     *pool.Pool
	Journals *journal.Store
	Null     int
	Events   Events

	showing atomic.Int32 // streams that have not sent all

	mu       sync.Mutex
	list     map[string]*Process
	finished []*Process // runs, in the order of their ends
	turn     int64
	register register
}

// NewTable makes an empty table.
func NewTable(p *pool.Pool, journals *journal.Store, null int) *Table {
	t := &Table{Pool: p, Journals: journals, Null: null, list: map[string]*Process{}}
	t.register.table, t.register.log = t, journals.Log(listName)
	return t
}

func (t *Table) add(p *Process) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.list[p.Request.ID] != nil {
		return ErrTaken
	}
	if len(t.list) >= maxProcesses {
		return ErrTooMany
	}
	t.turn++
	p.turn = t.turn
	t.list[p.Request.ID] = p
	return nil
}

// settle is told of every end: of the runs that have ended and left nothing, the oldest are forgotten.
func (t *Table) settle(p *Process) {
	if p.Request.Detach {
		return
	}
	t.mu.Lock()
	if t.list[p.Request.ID] == p { // else it was removed just now
		t.finished = append(t.finished, p)
	}
	var oldest *Process
	if len(t.finished) > maxFinished {
		oldest = t.finished[0]
		t.finished = slices.Delete(t.finished, 0, 1)
		if len(oldest.Children()) > 0 { // its turn comes again
			t.finished, oldest = append(t.finished, oldest), nil
		}
	}
	t.mu.Unlock()
	if oldest != nil {
		t.remove(oldest)
	}
}

// remove forgets a process and its output, unless another one has its id by now.
func (t *Table) remove(p *Process) {
	t.mu.Lock()
	if t.list[p.Request.ID] == p {
		delete(t.list, p.Request.ID)
	}
	if i := slices.Index(t.finished, p); i >= 0 {
		t.finished = slices.Delete(t.finished, i, i+1)
	}
	t.mu.Unlock()
	if p.journal != nil {
		t.register.forget(p)
		p.journal.Remove()
	}
}

// Get returns a process or nil.
func (t *Table) Get(id string) *Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.list[id]; p != nil && p.listed.Load() {
		return p
	}
	return nil
}

// All returns every process, oldest first.
func (t *Table) All() []*Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*Process, 0, len(t.list))
	for _, p := range t.list {
		if p.listed.Load() {
			all = append(all, p)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].turn < all[j].turn })
	return all
}

// Running counts the processes that have not ended.
func (t *Table) Running() int {
	_, n := t.Events.Now()
	return n
}

// Shown waits until whoever reads outputs has been sent all of them, or the moment is over.
func (t *Table) Shown(moment time.Duration) {
	for end := time.Now().Add(moment); t.showing.Load() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// Remove forgets a finished process and its output; false if it still runs.
func (t *Table) Remove(p *Process) bool {
	if p.Running() {
		return false
	}
	t.remove(p)
	return true
}
