package linux

import (
	"syscall"
	"testing"
)

func TestSignalsAreParsedByNameAndNumber(t *testing.T) {
	for text, want := range map[string]syscall.Signal{"TERM": 15, "SIGKILL": 9, "1": 1, "64": 64} {
		if got, ok := Signal(text); !ok || got != want {
			t.Errorf("%q: %v, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "0", "65", "-9", "term", "SIG", "SIGSIGTERM"} {
		if got, ok := Signal(text); ok {
			t.Errorf("%q: %v", text, got)
		}
	}
	if SignalName(9) != "KILL" || SignalName(40) != "40" {
		t.Error("wrong names")
	}
}
