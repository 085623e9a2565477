package process

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"time"

	"skerry/keeper/internal/disk"
)

const (
	firstLook = 10 * time.Millisecond
	lookEvery = 100 * time.Millisecond
)

// gauge looks now and then at how much memory a process and all that it started have together: the kernel keeps a peak of each
// process for itself only.
type gauge struct {
	process *Process
	mu      sync.Mutex
	timer   *time.Timer // nil: it has stopped
	pause   time.Duration
	most    uint64
}

func (p *Process) watchMemory() *gauge {
	g := &gauge{process: p, pause: firstLook}
	g.timer = time.AfterFunc(g.pause, g.tick)
	return g
}

func (g *gauge) tick() {
	sum := g.process.memory()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.most = max(g.most, sum)
	if g.timer != nil {
		g.pause = min(2*g.pause, lookEvery)
		g.timer.Reset(g.pause)
	}
}

// stop ends it, and says the most that it has seen; 0: the process was alone.
func (g *gauge) stop() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
	return g.most
}

// memory is what the process has, and what others that it started have for themselves; 0: there are none.
func (p *Process) memory() (sum uint64) {
	all := p.job.Left()
	if len(all) < 2 {
		return 0
	}
	_ = disk.Do(func() error {
		for _, pid := range all {
			if statm, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm"); err == nil {
				sum += heldIn(statm, pid == p.PID)
			}
		}
		return nil
	})
	return sum
}

// heldIn reads the second field, and takes the third away from it, which others may have too.
func heldIn(statm []byte, whole bool) uint64 {
	fields := bytes.Fields(statm)
	if len(fields) < 3 {
		return 0
	}
	resident, _ := strconv.ParseUint(string(fields[1]), 10, 40)
	shared, _ := strconv.ParseUint(string(fields[2]), 10, 40)
	if !whole {
		resident -= min(shared, resident)
	}
	return resident * uint64(os.Getpagesize())
}
