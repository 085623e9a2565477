package pool

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"skerry/keeper/internal/linux"
)

// Group is one v2 sub-cgroup, the home of one launcher and of all that its commands start. When the launcher has retired
// it stays until it is empty. Names are never used twice.
type Group struct {
	parent int
	name   string
	id     uint64 // as the kernel names it to the host
	path   string // as /proc/<pid>/cgroup shows it; pool.mu guards it

	mu      sync.Mutex  // also held while the directory is removed
	holders int         // launchers that are in it, or about to be
	jobs    int         // commands that run in it
	gone    atomic.Bool // the directory has been removed
}

// turns bounds how many goroutines stand in the kernel's one lock for all cgroups, each with a thread: 200 kills at once
// must not make 200 threads.
var turns = make(chan struct{}, 2)

func inTurn() func() {
	turns <- struct{}{}
	return func() { <-turns }
}

func newGroup(parent int, n int) (*Group, error) {
	defer inTurn()()
	g := &Group{parent: parent, name: "c" + strconv.Itoa(n)}
	if err := syscall.Mkdirat(parent, g.name, 0o755); err != nil && err != syscall.EEXIST {
		return nil, err
	}
	var stat syscall.Stat_t
	if linux.Lstatat(parent, g.name, &stat) == nil {
		g.id = stat.Ino
	}
	return g, nil
}

// hold keeps the group from being removed; false: it has been.
func (g *Group) hold() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.gone.Load() {
		g.holders++
	}
	return !g.gone.Load()
}

func (g *Group) letGo() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holders--
}

func (g *Group) count(jobs int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.jobs += jobs
}

// remove takes the directory away once nobody needs it and no process is in it; zombies don't count.
func (g *Group) remove() bool {
	defer inTurn()() // before the lock, as kill has it
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.holders > 0 || g.jobs > 0 {
		return false
	}
	if err := linux.Rmdirat(g.parent, g.name); err == nil || err == syscall.ENOENT {
		g.gone.Store(true)
	}
	return g.gone.Load()
}

// removed waits for a removal that is under way.
func (g *Group) removed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gone.Load()
}

// alive says whether a command of the group runs or has left something.
func (g *Group) alive() bool {
	g.mu.Lock()
	jobs := g.jobs
	g.mu.Unlock()
	return jobs > 0 || len(g.pids(1)) > 0
}

func (g *Group) open(file string, flags int) (*os.File, error) {
	if g.gone.Load() {
		return nil, syscall.ENOENT
	}
	fd, err := syscall.Openat(g.parent, g.name+"/"+file, flags|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), file), nil
}

// kill ends every process in the group at once; a fork in flight dies too.
func (g *Group) kill() error {
	defer inTurn()()
	f, err := g.open("cgroup.kill", syscall.O_WRONLY)
	if err == syscall.ENOENT && g.removed() {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write([]byte("1"))
	return err
}

// pids lists at most limit processes of the group, in our pid namespace.
func (g *Group) pids(limit int) []int {
	if g.gone.Load() {
		return nil
	}
	defer inTurn()()
	f, err := g.open("cgroup.procs", syscall.O_RDONLY)
	if err != nil {
		return nil
	}
	defer f.Close()
	buffer := make([]byte, 8*limit)
	n, _ := f.Read(buffer)
	var pids []int
	for _, line := range bytes.Fields(buffer[:n]) {
		if pid, err := strconv.Atoi(string(line)); err == nil && pid > 0 && len(pids) < limit {
			pids = append(pids, pid)
		}
	}
	return pids
}

// cpu reads how much processor time everything in the group has used. The kernel counts that in every v2 group, whatever
// controllers there are.
func (g *Group) cpu() (time.Duration, bool) {
	defer inTurn()()
	f, err := g.open("cpu.stat", syscall.O_RDONLY)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	var buffer [1024]byte
	n, _ := f.Read(buffer[:])
	fields := bytes.Fields(buffer[:n])
	if len(fields) < 2 || string(fields[0]) != "usage_usec" {
		return 0, false
	}
	used, err := strconv.ParseInt(string(fields[1]), 10, 53)
	return time.Duration(used) * time.Microsecond, err == nil
}

// groupPath is where a process sits in the v2 hierarchy, or "".
func groupPath(pid int) string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return ""
	}
	for _, line := range bytes.Split(text, []byte("\n")) {
		if path, found := bytes.CutPrefix(line, []byte("0::")); found {
			return string(path)
		}
	}
	return ""
}
