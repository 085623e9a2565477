package process

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"time"

	"skerry/keeper/internal/iolimit"
)

const (
	firstSample    = 10 * time.Millisecond
	sampleInterval = 100 * time.Millisecond
	rateInterval   = sampleInterval / 2 // the shortest time over which a rate is taken
)

// usageSampler samples the memory and the processor time of a process and everything that it started. The kernel keeps
// only a peak of the memory of each single process, so the peak of the sum must be sampled: after 10 ms, 30, 70, 150,
// then every 100 ms.
type usageSampler struct {
	process *Process
	mu      sync.Mutex
	timer   *time.Timer // nil: stopped
	pause   time.Duration
	peak    uint64
	rate    float64 // the largest processor time per time, in cores
	cpu     time.Duration
	at      time.Time // of cpu; zero: not known
}

func (p *Process) sampleUsage() *usageSampler {
	g := &usageSampler{process: p, pause: firstSample}
	if cpu, known := p.job.CPU(); known {
		g.cpu, g.at = cpu, time.Now()
	}
	g.timer = time.AfterFunc(g.pause, g.tick)
	return g
}

func (s *usageSampler) tick() {
	sum := s.process.memory()
	cpu, known := s.process.job.CPU()
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peak = max(s.peak, sum)
	if passed := now.Sub(s.at); known && !s.at.IsZero() && passed >= rateInterval {
		s.rate = max(s.rate, float64(cpu-s.cpu)/float64(passed))
		s.cpu, s.at = cpu, now
	}
	if s.timer != nil {
		s.pause = min(2*s.pause, sampleInterval)
		s.timer.Reset(s.pause)
	}
}

// stop ends sampling and returns the largest memory and the largest rate of processor time. A memory of 0: the process
// was always alone. A rate of 0: it was too short to be sampled.
func (s *usageSampler) stop() (memory uint64, rate float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	return s.peak, s.rate
}

// memory returns the memory of the process plus the private memory of the processes that it started; 0: it has started
// none.
func (p *Process) memory() (sum uint64) {
	all := p.job.Left()
	if len(all) < 2 {
		return 0
	}
	_ = iolimit.Do(func() error {
		for _, pid := range all {
			if statm, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm"); err == nil {
				sum += residentIn(statm, pid == p.PID)
			}
		}
		return nil
	})
	return sum
}

// residentIn reads the resident size, the second field. Unless whole is set, it subtracts the third field: pages that
// others may share.
func residentIn(statm []byte, whole bool) uint64 {
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
