package process

import (
	"os"
	"testing"
	"time"
)

func TestTimesAreParsedForAnyProgramName(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"7 (a) S 1 7 7 0 -1 4194560 1 0 0 0 11 22 33 44 20 0 1 0": 1100 * time.Millisecond,
		"7 (a b) S) S 1 7 7 0 -1 4194560 1 0 0 0 1 0 0 0 20 0":    10 * time.Millisecond,
		"7 (a) S 1 7": 0,
		"":            0,
	} {
		if got := timesIn([]byte(text)); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestPeakIsParsed(t *testing.T) {
	for text, want := range map[string]uint64{
		"Name:\tx\nVmPeak:\t 9 kB\nVmHWM:\t    12 kB\nVmRSS:\t 1 kB\n": 12 << 10,
		"Name:\tx\n": 0,
		"\nVmHWM:":   0,
		"\nVmHWM: x": 0,
	} {
		if got := peakIn([]byte(text)); got != want {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestRunningProcessHasPeakAndTimes(t *testing.T) {
	p := &Process{PID: os.Getpid()}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		if peak, cpu := p.statistics(); peak > 1<<20 && cpu > 0 {
			return
		}
	}
	t.Error("no time or no memory was used")
}

func TestSharedMemoryIsCountedOnce(t *testing.T) {
	page := uint64(os.Getpagesize())
	for text, want := range map[string][2]uint64{
		"900 100 40 1 0 20 0\n": {100 * page, 60 * page},
		"900 100 140":           {100 * page, 0},
		"900":                   {0, 0},
		"":                      {0, 0},
	} {
		if got := [2]uint64{residentIn([]byte(text), true), residentIn([]byte(text), false)}; got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
