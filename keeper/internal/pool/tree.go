package pool

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"
)

const maxAncestors = 4096

// descendants walks the parent links of /proc. It is the fall-back where there is no cgroup: a launcher is a subreaper,
// so what called setsid or daemonised is below it all the same.
func descendants(root int) []int {
	parents := everyParent()
	var found []int
	for pid := range parents {
		if below(pid, root, parents) && len(found) < maxLeft {
			found = append(found, pid)
		}
	}
	return found
}

// everyParent maps the living processes to their parents.
func everyParent() map[int]int {
	parents := map[int]int{}
	dir, err := os.Open("/proc")
	if err != nil {
		return parents
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if parent, alive := parentOf(name); alive {
				parents[pid] = parent
			}
		}
	}
	return parents
}

func below(pid, root int, parents map[int]int) bool {
	for range len(parents) {
		parent, ok := parents[pid]
		if !ok {
			return false
		}
		if parent == root {
			return true
		}
		pid = parent
	}
	return false
}

// parentOf reads "pid (name) state ppid …"; the name may itself hold brackets. A zombie counts as gone.
func parentOf(pid string) (int, bool) {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, false
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 || fields[0][0] == 'Z' || fields[0][0] == 'X' {
		return 0, false
	}
	parent, err := strconv.Atoi(string(fields[1]))
	return parent, err == nil
}

// killTree stops every descendant until no new one appears, then kills them all. The launcher itself lives on.
func killTree(root int) {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		stopped := map[int]bool{}
		for range 1000 {
			before := len(stopped)
			for _, pid := range descendants(root) {
				if !stopped[pid] && syscall.Kill(pid, syscall.SIGSTOP) == nil {
					stopped[pid] = true
				}
			}
			if len(stopped) == before {
				break
			}
		}
		for pid := range stopped {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(stopped) == 0 {
			return
		}
	}
}

// killStrays ends what is below PID 1 and below no launcher: the tree of a launcher that died without a cgroup.
func (p *Pool) killStrays() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range 100 {
		parents := everyParent()
		strays := 0
		for pid := range parents {
			if !p.launcherAbove(pid, parents) && below(pid, 1, parents) && syscall.Kill(pid, syscall.SIGKILL) == nil {
				strays++
			}
		}
		if strays == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (p *Pool) launcherAbove(pid int, parents map[int]int) bool {
	for l := range p.all {
		if pid == l.pid || below(pid, l.pid, parents) {
			return true
		}
	}
	return false
}

// Of returns the launcher whose tree a process belongs to, or nil. Launchers are subreapers: whatever a process did, its
// line of parents leads there.
func (p *Pool) Of(pid int) *Launcher {
	p.mu.Lock()
	launchers := make(map[int]*Launcher, len(p.all))
	for l := range p.all {
		launchers[l.pid] = l
	}
	p.mu.Unlock()
	for range maxAncestors {
		if l := launchers[pid]; l != nil {
			return l
		}
		parent, alive := parentOf(strconv.Itoa(pid))
		if !alive || parent <= 1 {
			return nil
		}
		pid = parent
	}
	return nil
}
