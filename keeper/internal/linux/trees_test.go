package linux

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// tests/keeper/test_build.py runs this test on btrfs too, where it fails without the rewind.
func TestDirentsListEntriesCreatedAfterTheOpen(t *testing.T) {
	directory := t.TempDir()
	fd, err := syscall.Open(directory, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(fd) }()
	if err := os.WriteFile(filepath.Join(directory, "late"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if entry, err := NewDirents(fd).Next(); err != nil || entry == nil || entry.Name != "late" {
		t.Fatalf("got %v, %v", entry, err)
	}
}
