package uncharged

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
)

const noThread = maxInt // above the largest number of a thread

func fixed(size int) func() int { return func() int { return size } }

func TestBudgetCountsAgainWhenItIsUsedUp(t *testing.T) {
	open, counts := 0, 0
	k := &kind{cost: 1, each: 1, count: func() int { counts++; return open }}
	b := budget{kinds: []*kind{k}, size: fixed(10), calls: calls{}}
	for range 10 {
		if !b.take(k, noThread) {
			t.Fatal("refused below the limit")
		}
		open++
	}
	if counts != 0 {
		t.Errorf("counted %d times", counts)
	}
	if b.take(k, noThread) {
		t.Error("approved above the limit")
	}
	open = 3
	if !b.take(k, noThread) {
		t.Error("refused although sockets were closed")
	}
}

func TestKindsShareOneBudget(t *testing.T) {
	small, large := 0, 0
	a := &kind{cost: 1, each: 1, count: func() int { return small }}
	b := &kind{cost: 10, each: 1, count: func() int { return large }}
	shared := budget{kinds: []*kind{a, b}, size: fixed(100), calls: calls{}}
	for shared.take(b, noThread) {
		large++
	}
	if large != 10 {
		t.Errorf("%d large ones in a budget for 10", large)
	}
	if shared.take(a, noThread) {
		t.Error("approved above the budget that another kind has used up")
	}
	large = 9
	for shared.take(a, noThread) {
		small++
	}
	if small != 10 {
		t.Errorf("%d small ones beside 9 large ones", small)
	}
}

func TestKindHasItsOwnMaximum(t *testing.T) {
	open := 0
	k := &kind{cost: 1, each: 1, most: 4, count: func() int { return open }}
	b := budget{kinds: []*kind{k}, size: fixed(1000), calls: calls{}}
	for b.take(k, noThread) {
		open++
	}
	if open != 4 {
		t.Errorf("%d of at most 4", open)
	}
}

func TestBudgetWithTheSocketLimitOfV1IsATenth(t *testing.T) {
	for _, memory := range []int{16 << 20, 64 << 20, 2 << 30, 64 << 30} {
		sockets := 4<<20 + memory/20
		if total := sizeFor(memory, sockets) + sockets + reserved; total > 16<<20+memory/10 {
			t.Errorf("%d bytes with a memory limit of %d", total, memory)
		}
		if sizeFor(memory, sockets) < 4*listenerCost {
			t.Errorf("no sockets with a memory limit of %d", memory)
		}
	}
}

// A filter that several threads share counts as one, whether they inherited it or have it from TSYNC.
func TestThreadsShareTheirFilters(t *testing.T) {
	own, err := statusOf("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	process := os.Getpid() // a Go program has many threads
	c := filterCount{inherited: own.filters - 1, approved: map[int]int{}, installed: map[int]int{process: 1}}
	threads := map[int]int{}
	if found, ok := c.countProcess(process, threads); !ok || found != 2 {
		t.Errorf("%d filters in %d threads, want 2", found, len(numbers("/proc/"+strconv.Itoa(process)+"/task")))
	}
	if found, ok := c.countProcess(child.Process.Pid, threads); !ok || found != 1 {
		t.Errorf("%d filters in one thread, want 1", found)
	}
}
