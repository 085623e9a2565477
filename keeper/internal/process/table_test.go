package process

import (
	"fmt"
	"slices"
	"testing"
)

func finished(t *Table, id string) *Process {
	p := &Process{Request: &Request{ID: id}, ended: make(chan struct{})}
	close(p.ended)
	_ = t.add(p)
	t.settle(p)
	return p
}

func TestTableReleasesForgottenProcesses(t *testing.T) {
	table := &Table{list: map[string]*Process{}}
	removed := finished(table, "p-removed")
	oldest := finished(table, "p-oldest")
	table.Remove(removed)
	for n := range maxFinished {
		finished(table, fmt.Sprintf("p-%d", n))
	}
	if len(table.list) != maxFinished || len(table.finished) != maxFinished {
		t.Errorf("%d are listed, %d of them finished", len(table.list), len(table.finished))
	}
	for _, p := range []*Process{removed, oldest} {
		if slices.Contains(table.finished[:cap(table.finished)], p) {
			t.Errorf("%s is still held", p.Request.ID)
		}
	}
}
