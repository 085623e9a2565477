package track

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The limits belong to a user namespace, so the test runs itself again in a new one.
func TestEveryScanIsFullWithoutWatches(t *testing.T) {
	if limit := os.Getenv("SKERRY_LIMIT"); limit != "" {
		name, value, _ := strings.Cut(limit, "=")
		if err := os.WriteFile("/proc/sys/user/"+name, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
		unwatched(t)
		return
	}
	for _, limit := range []string{"max_inotify_instances=0", "max_inotify_watches=1", "max_inotify_watches=3"} {
		c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		c.Env = append(os.Environ(), "SKERRY_LIMIT="+limit)
		ids := []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		gids := []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: gids}
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", limit, err, out)
		}
	}
}

func unwatched(t *testing.T) {
	root, tracker := begin(t)
	defer tracker.End()
	for _, name := range []string{"a", "b/c", "d/e/f", "g/h"} {
		_ = os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755)
		write(t, filepath.Join(root, name))
	}
	var head Head
	for range 3 {
		var types map[string]string
		if head, types = scan(t, tracker, head.Seq); !head.Full || len(types) != 8 {
			t.Fatal("reported:", types)
		}
	}
	if _, changed, at := tracker.changedSince(head.Seq); !changed || time.Until(at) < unwatchedInterval/2 {
		t.Error("the host would scan all the time, or never")
	}
}

func TestRemovedRootIsFoundAgain(t *testing.T) {
	root, tracker := begin(t)
	defer tracker.End()
	write(t, filepath.Join(root, "a"))
	scan(t, tracker, 0)
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	head, types := scan(t, tracker, 1)
	if !head.Full || len(types) != 0 {
		t.Error("reported:", types)
	}
	if _, changed, at := tracker.changedSince(head.Seq); !changed || time.Until(at) < unwatchedInterval/2 {
		t.Error("the host would scan all the time, or never")
	}
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "b"))
	if head, types = scan(t, tracker, head.Seq); !head.Full || len(types) != 1 {
		t.Error("reported:", types)
	}
	if _, changed, _ := tracker.changedSince(head.Seq); changed {
		t.Error("a change is reported although nothing happened")
	}
}
