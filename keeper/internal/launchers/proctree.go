package launchers

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"
)

const snapshots = 20 // attempts to see a consistent /proc

// tree maps every process to its parent. It includes zombies, because their children may still name them.
type tree struct {
	parents map[int]int
	zombies map[int]bool
}

// snapshot reads /proc until every named parent is present: a parent may exit between two reads.
func snapshot() (t tree) {
	for range snapshots {
		t = readTree()
		whole := true
		for _, parent := range t.parents {
			if _, there := t.parents[parent]; parent > 1 && !there {
				whole = false
			}
		}
		if whole {
			break
		}
	}
	return t
}

// readTree reads the parent and state of every process in /proc once.
func readTree() tree {
	t := tree{map[int]int{}, map[int]bool{}}
	dir, err := os.Open("/proc")
	if err != nil {
		return t
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if parent, state := parentOf(name); state != 0 {
				t.parents[pid] = parent
				t.zombies[pid] = state == 'Z' || state == 'X'
			}
		}
	}
	return t
}

// descendants lists the living processes below root. It is the fallback without a cgroup: a launcher is a subreaper, so
// processes that called setsid or daemonised are still below it.
func descendants(root int) []int {
	t := snapshot()
	var found []int
	for pid := range t.parents {
		if !t.zombies[pid] && t.below(pid, root) && len(found) < maxLeft {
			found = append(found, pid)
		}
	}
	return found
}

func (t tree) below(pid, root int) bool {
	for range len(t.parents) {
		parent, ok := t.parents[pid]
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

// parentOf parses "pid (name) state ppid …"; the name may contain brackets. State 0: the process does not exist.
func parentOf(pid string) (parent int, state byte) {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, 0
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0, 0
	}
	if parent, err = strconv.Atoi(string(fields[1])); err != nil {
		return 0, 0
	}
	return parent, fields[0][0]
}

// killTree stops every descendant until no new one appears, then kills them all. The launcher itself survives.
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

// killStrays kills processes below PID 1 that are below no launcher and in no group: the tree of a launcher that died
// without a cgroup.
func (p *Pool) killStrays() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range 100 {
		t := snapshot()
		strays := 0
		for pid := range t.parents {
			if !t.zombies[pid] && t.below(pid, 1) && !p.launcherAbove(pid, t) && p.leftGroup(pid) == nil &&
				!p.inGroup(pid) && syscall.Kill(pid, syscall.SIGKILL) == nil {
				strays++
			}
		}
		if strays == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (p *Pool) launcherAbove(pid int, t tree) bool {
	for l := range p.all {
		if pid == l.pid || t.below(pid, l.pid) {
			return true
		}
	}
	return false
}

// inGroup reports whether a process is in the group of a launcher. p.mu is held.
func (p *Pool) inGroup(pid int) bool {
	path := groupPath(pid)
	for l := range p.all {
		if l.grouped && path != "" && l.group.path == path {
			return true
		}
	}
	return false
}

// leftGroup returns the group without a launcher that contains a process, or nil. p.mu is held.
func (p *Pool) leftGroup(pid int) *Group {
	if len(p.left) == 0 {
		return nil
	}
	path := groupPath(pid)
	for g := range p.left {
		if g.path == path && path != "" {
			return g
		}
	}
	return nil
}

// withoutLaunchers removes launchers from a list of pids.
func (p *Pool) withoutLaunchers(pids []int) (left []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pid := range pids {
		if !p.unreaped[pid] && len(left) < maxLeft {
			left = append(left, pid)
		}
	}
	return left
}

// Terminate asks every process below PID 1 to end, except the launchers, which wait for them.
func (p *Pool) Terminate() {
	launchers := map[int]bool{}
	p.mu.Lock()
	for l := range p.all {
		launchers[l.pid] = true
	}
	p.mu.Unlock()
	t := snapshot()
	for pid := range t.parents {
		if !t.zombies[pid] && !launchers[pid] && t.below(pid, 1) {
			_ = syscall.Kill(pid, syscall.SIGTERM)
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
}
