package process

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"skerry/keeper/internal/iolimit"
)

const clockTick = 10 * time.Millisecond // unit of the times in /proc

// usageMeter holds the usage of a process at the start of an exchange.
type usageMeter struct {
	began   time.Time
	group   time.Duration // of everything in its cgroup
	grouped bool          // group is valid
	own     time.Duration // of the process and the children that it has waited for
	memory  uint64        // of the process
	sampler *usageSampler
}

// usage is the usage of an exchange, including everything that the process started. The memory is the peak of the
// process itself or, if larger, the sampled sum over all its processes. PeakCPU is in cores, over a tenth of a second.
type usage struct {
	CPU      float64 `json:"cpu_s"`
	MaxRSS   uint64  `json:"max_rss"`
	Duration float64 `json:"duration_s"`
	StartRSS uint64  `json:"start_rss"`
	PeakCPU  float64 `json:"peak_cpu"`
}

// measure starts a measurement and resets the kernel's peak of the process's memory.
func (p *Process) measure() usageMeter {
	m := usageMeter{began: time.Now(), sampler: p.sampleUsage()}
	m.group, m.grouped = p.job.CPU()
	_ = iolimit.Do(func() error {
		_, m.own = p.statistics()
		if statm, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/statm"); err == nil {
			m.memory = residentIn(statm, true)
		}
		return os.WriteFile("/proc/"+strconv.Itoa(p.PID)+"/clear_refs", []byte("5"), 0)
	})
	return m
}

func (m *usageMeter) read(p *Process) usage {
	var peak uint64
	var own time.Duration
	_ = iolimit.Do(func() error {
		peak, own = p.statistics()
		return nil
	})
	sampled, rate := m.sampler.stop()
	return usage{
		CPU: m.cpu(p, own).Seconds(), MaxRSS: max(peak, sampled, p.memory()), Duration: time.Since(m.began).Seconds(),
		StartRSS: m.memory, PeakCPU: rate,
	}
}

// exit returns the exit status of the process with the usage of this exchange.
func (m *usageMeter) exit(p *Process) Status {
	s := p.status
	s.Duration = max(0, p.endedAt.Sub(m.began).Seconds())
	s.CPU = m.cpu(p, time.Duration(s.CPU*float64(time.Second))).Seconds()
	sampled, _ := m.sampler.stop()
	s.MaxRSS = max(s.MaxRSS, sampled)
	return s
}

func (m *usageMeter) cpu(p *Process, own time.Duration) time.Duration {
	if m.grouped {
		if group, known := p.job.CPU(); known {
			return max(0, group-m.group)
		}
	}
	return max(0, own-m.own)
}

// statistics reads the peak memory of the process and its processor time.
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

// timesIn adds up utime, stime, cutime and cstime, fields 14 to 17. The second field, a name, may hold anything.
func timesIn(stat []byte) (sum time.Duration) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	const first = 14 - 3
	for i := first; i < first+4 && i < len(fields); i++ {
		n, _ := strconv.ParseUint(string(fields[i]), 10, 40)
		sum += time.Duration(n) * clockTick
	}
	return sum
}
