package process

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"skerry/keeper/internal/disk"
)

const clockTick = 10 * time.Millisecond // of the times in /proc

// meter is what a process had used when a turn began.
type meter struct {
	began   time.Time
	group   time.Duration // by everything in its cgroup
	grouped bool          // that is known
	own     time.Duration // by itself and by children that it has waited for
	gauge   *gauge
}

// used is what a turn took, of everything that the process has started. The memory is the most that the process itself had, or, if
// more was seen of all together, that.
type used struct {
	CPU      float64 `json:"cpu_s"`
	MaxRSS   uint64  `json:"max_rss"`
	Duration float64 `json:"duration_s"`
}

// measure begins a measurement. It also has the kernel forget the most memory that the process had so far.
func (p *Process) measure() meter {
	m := meter{began: time.Now(), gauge: p.watchMemory()}
	m.group, m.grouped = p.job.CPU()
	_ = disk.Do(func() error {
		_, m.own = p.statistics()
		return os.WriteFile("/proc/"+strconv.Itoa(p.PID)+"/clear_refs", []byte("5"), 0)
	})
	return m
}

func (m *meter) read(p *Process) used {
	var peak uint64
	var own time.Duration
	_ = disk.Do(func() error {
		peak, own = p.statistics()
		return nil
	})
	return used{m.cpu(p, own).Seconds(), max(peak, m.gauge.stop(), p.memory()), time.Since(m.began).Seconds()}
}

// exit is how the process ended, with what it took in this turn.
func (m *meter) exit(p *Process) Status {
	s := p.status
	s.Duration = max(0, p.endedAt.Sub(m.began).Seconds())
	s.CPU = m.cpu(p, time.Duration(s.CPU*float64(time.Second))).Seconds()
	s.MaxRSS = max(s.MaxRSS, m.gauge.stop())
	return s
}

func (m *meter) cpu(p *Process, own time.Duration) time.Duration {
	if m.grouped {
		if group, known := p.job.CPU(); known {
			return max(0, group-m.group)
		}
	}
	return max(0, own-m.own)
}

// statistics reads the most memory that the process had, and its processor time.
func (p *Process) statistics() (peak uint64, cpu time.Duration) {
	dir := "/proc/" + strconv.Itoa(p.PID)
	if status, err := os.ReadFile(dir + "/status"); err == nil {
		peak = peakIn(status)
	}
	if stat, err := os.ReadFile(dir + "/stat"); err == nil {
		cpu = timesIn(stat)
	}
	return peak, cpu
}

func peakIn(status []byte) uint64 {
	_, rest, found := bytes.Cut(status, []byte("\nVmHWM:"))
	fields := bytes.Fields(rest)
	if !found || len(fields) == 0 {
		return 0
	}
	n, _ := strconv.ParseUint(string(fields[0]), 10, 40)
	return n << 10
}

// timesIn adds up utime, stime, cutime and cstime: the 14th field to the 17th. The second one, a name, may hold anything.
func timesIn(stat []byte) (sum time.Duration) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	const first = 14 - 3
	for i := first; i < first+4 && i < len(fields); i++ {
		n, _ := strconv.ParseUint(string(fields[i]), 10, 40)
		sum += time.Duration(n) * clockTick
	}
	return sum
}
