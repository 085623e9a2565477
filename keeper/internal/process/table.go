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
	"skerry/keeper/internal/launchers"
)

const (
	maxProcesses = 4096            // in the table
	maxFinished  = 1024            // ended runs without leftover processes
	removeDelay  = 5 * time.Second // from the end of a process to its automatic removal: callers that wait get its result
)

// Errors of the table.
var (
	ErrIDTaken = errors.New("a process with this ID already exists")
	ErrTooMany = errors.New("at most 4,096 processes can be listed: remove finished ones")
)

const maxShown = 1024 // bytes of a command line in a list

// truncateCommand keeps the part of the command that lists show and frees the rest, because a finished process stays in
// the table for long.
func (p *Process) truncateCommand() {
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
	p.Request = &Request{
		ID: p.Request.ID, Detach: p.Request.Detach, Session: p.Request.Session, Remove: p.Request.Remove,
		Argv: []string{name},
	}
}

// Name returns the name of the program.
func (p *Process) Name() string {
	if len(p.Request.Argv) == 0 {
		return "shell"
	}
	return strings.Clone(p.Request.Argv[0][:min(len(p.Request.Argv[0]), maxShown)])
}

// Table holds every process that was requested, running or finished.
type Table struct {
	Pool     *launchers.Pool
	Journals *journal.Store
	Null     int
	Events   Events

	streaming atomic.Int32 // streams with unsent output

	mu        sync.Mutex
	list      map[string]*Process
	finished  []*Process // runs, in the order of their exits
	seq       int64
	persister persister
}

// NewTable makes an empty table.
func NewTable(p *launchers.Pool, journals *journal.Store, null int) *Table {
	t := &Table{Pool: p, Journals: journals, Null: null, list: map[string]*Process{}}
	t.persister.table, t.persister.log = t, journals.Log(listName)
	return t
}

func (t *Table) add(p *Process) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.list[p.Request.ID] != nil {
		return ErrIDTaken
	}
	if len(t.list) >= maxProcesses {
		return ErrTooMany
	}
	t.seq++
	p.seq = t.seq
	t.list[p.Request.ID] = p
	return nil
}

// settle is called at every exit. It forgets the oldest ended runs that left nothing behind, and soon the processes that
// are to be removed automatically.
func (t *Table) settle(p *Process) {
	if p.Request.Remove {
		time.AfterFunc(removeDelay, func() { t.remove(p) })
	}
	if p.Request.Detach {
		return
	}
	t.mu.Lock()
	if t.list[p.Request.ID] == p { // otherwise it has just been removed
		t.finished = append(t.finished, p)
	}
	var oldest *Process
	if len(t.finished) > maxFinished {
		oldest = t.finished[0]
		t.finished = slices.Delete(t.finished, 0, 1)
		if len(oldest.Children()) > 0 { // try again later
			t.finished, oldest = append(t.finished, oldest), nil
		}
	}
	t.mu.Unlock()
	if oldest != nil {
		t.remove(oldest)
	}
}

// remove forgets a process and its output, unless another process has its ID by now.
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
		t.persister.forget(p)
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
	sort.Slice(all, func(i, j int) bool { return all[i].seq < all[j].seq })
	return all
}

// Running counts the processes that have not ended.
func (t *Table) Running() int {
	_, n := t.Events.Now()
	return n
}

// WaitStreamed waits until all streams have sent their output, or until the moment is over.
func (t *Table) WaitStreamed(moment time.Duration) {
	for end := time.Now().Add(moment); t.streaming.Load() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// Remove forgets a finished process and its output. It returns false if the process is running.
func (t *Table) Remove(p *Process) bool {
	if p.Running() {
		return false
	}
	t.remove(p)
	return true
}
