package uncharged

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestListeningSocketsAreCountedUpToTheFirstOther(t *testing.T) {
	head := "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
	line := "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n"
	other := strings.Replace(line, " 0A ", " 01 ", 1)
	path := filepath.Join(t.TempDir(), "tcp")
	for text, want := range map[string]int{
		head: 0, head + line: 1, head + strings.Repeat(line, 300) + other + line: 300, head + other: 0,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := listening(path); got != want {
			t.Errorf("%d listening sockets, want %d", got, want)
		}
	}
}
