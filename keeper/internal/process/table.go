package process

import (
	"errors"
	"sort"
	"strings"
	"sync"

	"skerry/keeper/internal/pool"
)

const (
	maxProcesses = 4096 // known at one time
	maxFinished  = 256  // finished, with nothing left of them
)

// Errors of the table.
var (
	ErrTaken   = errors.New("this id is taken")
	ErrTooMany = errors.New("too many processes")
)

const maxShown = 1024 // bytes of a command line in a list

// shorten keeps what lists show of the command, and lets the rest go: a finished process stays known for long.
func (p *Process) shorten() {
	room := maxShown
	for _, word := range p.Request.Argv {
		if room -= len(word) + 1; room < 0 {
			p.Argv = append(p.Argv, strings.ToValidUTF8(word[:max(0, len(word)+room)], "")+"…")
			break
		}
		p.Argv = append(p.Argv, word)
	}
	if line := p.Request.Shell; line != nil {
		p.Shell = line
		if len(*line) > maxShown {
			short := strings.ToValidUTF8((*line)[:maxShown], "") + "…"
			p.Shell = &short
		}
	}
	name := p.Name()
	p.Request = &Request{ID: p.Request.ID, Detach: p.Request.Detach, Argv: []string{name}}
}

// Name is the program's.
func (p *Process) Name() string {
	if len(p.Request.Argv) == 0 {
		return "shell"
	}
	return p.Request.Argv[0][:min(len(p.Request.Argv[0]), maxShown)]
}

// Table knows every process that was asked for, running or finished.
type Table struct {
	Pool *pool.Pool
	Null int

	mu   sync.Mutex
	list map[string]*Process
	turn int64
}

// NewTable makes an empty table.
func NewTable(p *pool.Pool, null int) *Table {
	return &Table{Pool: p, Null: null, list: map[string]*Process{}}
}

func (t *Table) add(p *Process) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.list[p.Request.ID] != nil {
		return ErrTaken
	}
	t.forgetOldest()
	if len(t.list) >= maxProcesses {
		return ErrTooMany
	}
	t.turn++
	p.turn = t.turn
	t.list[p.Request.ID] = p
	return nil
}

// forgetOldest makes room: what is finished and left nothing goes first.
func (t *Table) forgetOldest() {
	if len(t.list) <= maxFinished {
		return
	}
	finished := 0
	var oldest *Process
	for _, p := range t.list {
		if p.Running() || len(p.Children()) > 0 {
			continue
		}
		finished++
		if oldest == nil || p.turn < oldest.turn {
			oldest = p
		}
	}
	if finished > maxFinished {
		delete(t.list, oldest.Request.ID)
	}
}

func (t *Table) remove(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.list, id)
}

// Get returns a process or nil.
func (t *Table) Get(id string) *Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list[id]
}

// All returns every process, oldest first.
func (t *Table) All() []*Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*Process, 0, len(t.list))
	for _, p := range t.list {
		all = append(all, p)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].turn < all[j].turn })
	return all
}

// Running counts the processes that have not ended.
func (t *Table) Running() int {
	n := 0
	for _, p := range t.All() {
		if p.Running() {
			n++
		}
	}
	return n
}

// Remove forgets a finished process; false if it still runs.
func (t *Table) Remove(p *Process) bool {
	if p.Running() {
		return false
	}
	t.remove(p.Request.ID)
	return true
}
