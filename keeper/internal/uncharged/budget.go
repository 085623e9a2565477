package uncharged

import (
	"bytes"
	"os"
	"strconv"
	"time"
)

// All kinds share one budget: the memory that no limit of the sandbox covers is at most 16 MB and 10 % of the memory
// limit, in total.
const (
	baseBudget    = 16 << 20
	budgetPart    = 10 // one tenth of the memory limit
	defaultMemory = 64 << 20
	// Tables of the network, which have limits of their own: tracked and closed connections, and fragments
	reserved = 8192*320 + 4096*256 + 4*(256<<10)

	retryTime   = time.Millisecond
	maxWaitTime = 50 * time.Millisecond // for approved calls to end
	sizeTime    = time.Second           // a memory limit counts after this time
)

const (
	memoryFile   = "/sys/fs/cgroup/memory.max"
	memoryFileV1 = "/sys/fs/cgroup/memory/memory.limit_in_bytes"
	socketFileV1 = "/sys/fs/cgroup/memory/memory.kmem.tcp.limit_in_bytes"
)

// kind is something that takes memory of the kernel. bound is an upper bound of the number of them: the last count plus
// what the calls approved since may add.
type kind struct {
	cost  int // bytes of each
	each  int // the most that one call adds
	most  int // 0: only the budget limits it
	bound int
	under int // approved calls that may not have ended: a count may miss them
	count func() int
}

// budget is shared by all kinds.
type budget struct {
	kinds []*kind
	size  func() int
	total int
	read  time.Time
	calls calls
}

// take approves a call of a thread that adds to a kind. It counts only when the bounds have used up the budget, because a
// count takes about 0.1 ms.
func (b *budget) take(k *kind, thread int) bool {
	b.calls.ended(thread) // the earlier one
	began := time.Now()
	for {
		now := time.Now()
		if now.Sub(b.read) > sizeTime {
			b.total, b.read = b.size(), now
		}
		if b.fits(k) {
			k.bound += k.each
			b.calls.began(thread, k)
			return true
		}
		if b.recount(k) {
			continue
		}
		if !b.hopeful(k) || now.Sub(began) > maxWaitTime {
			return false
		}
		time.Sleep(retryTime) // until approved calls are in the count
	}
}

// fits returns whether one more call of that kind stays in the budget.
func (b *budget) fits(k *kind) bool {
	used := 0
	for _, one := range b.kinds {
		used += one.bound * one.cost
	}
	return used+k.each*k.cost <= b.total && (k.most == 0 || k.bound+k.each <= k.most)
}

// recount counts this kind, and then the others until the call fits: the one with the most memory first. A call that ends
// during a count may be missing in it, so the ended calls are found before.
func (b *budget) recount(k *kind) bool {
	b.calls.findEnded()
	k.recount()
	counted := map[*kind]bool{k: true}
	for !b.fits(k) {
		var next *kind
		for _, one := range b.kinds {
			if !counted[one] && (next == nil || one.bound*one.cost > next.bound*next.cost) {
				next = one
			}
		}
		if next == nil {
			return false
		}
		counted[next] = true
		next.recount()
	}
	return true
}

// hopeful returns whether the call would fit if no approved call that may not have ended added anything.
func (b *budget) hopeful(k *kind) bool {
	used := 0
	for _, one := range b.kinds {
		used += one.certain() * one.cost
	}
	return used+k.each*k.cost <= b.total && (k.most == 0 || k.certain()+k.each <= k.most)
}

func (k *kind) certain() int { return k.bound - k.each*k.under }

func (k *kind) recount() { k.bound = min(k.count(), maxInt) + k.each*k.under }

// budgetSize returns the bytes that all kinds may take. On cgroup v1, the data in TCP and UDP sockets has a separate
// limit, which is a part of the whole.
func budgetSize() int {
	if memory, err := limit(memoryFile); err == nil {
		return sizeFor(memory, 0)
	}
	memory, err := limit(memoryFileV1)
	if err != nil {
		memory = defaultMemory
	}
	sockets, err := limit(socketFileV1)
	if err != nil {
		sockets = 4<<20 + memory/20
	}
	return sizeFor(memory, sockets)
}

func sizeFor(memory, sockets int) int {
	return max(0, baseBudget+memory/budgetPart-sockets-reserved)
}

func limit(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(bytes.TrimSpace(text)))
}
