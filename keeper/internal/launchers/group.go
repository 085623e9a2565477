package launchers

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

// Group is one v2 sub-cgroup: the home of one launcher and of everything that its commands start. When the launcher has
// moved or died, the group stays until it is empty. Names are never reused.
type Group struct {
	parent int
	name   string
	id     uint64 // as the kernel reports it to the host
	path   string // as in /proc/<pid>/cgroup; guarded by pool.mu

	mu      sync.Mutex    // also held while the directory is removed
	holders int           // launchers in the group, or about to join
	jobs    int           // running commands
	shared  bool          // several commands have run at the same time
	billed  time.Duration // processor time up to the end of the last command
	exact   bool          // billed is known
	killed  atomic.Bool   // so is a launcher in it
	gone    atomic.Bool   // the directory has been removed
}

// cgroupSlots bounds the goroutines that wait for the kernel's single cgroup lock, each of which holds a thread: 200
// kills at once must not create 200 threads.
var cgroupSlots = make(chan struct{}, 2)

func takeCgroupSlot() func() {
	cgroupSlots <- struct{}{}
	return func() { <-cgroupSlots }
}

func newGroup(parent int, n int) (*Group, error) {
	defer takeCgroupSlot()()
	g := &Group{parent: parent, name: "c" + strconv.Itoa(n), exact: true}
	if err := syscall.Mkdirat(parent, g.name, 0o755); err != nil && err != syscall.EEXIST {
		return nil, err
	}
	var stat syscall.Stat_t
	if linux.Lstatat(parent, g.name, &stat) == nil {
		g.id = stat.Ino
	}
	return g, nil
}

// hold keeps the group from being removed. It returns false if it has been removed.
func (g *Group) hold() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.gone.Load() {
		g.holders++
	}
	return !g.gone.Load()
}

func (g *Group) unhold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holders--
}

func (g *Group) count(jobs int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.jobs += jobs
	g.shared = g.jobs > 1 || g.shared && g.jobs > 0
}

// bill returns the processor time that the group has used since the last call, if only one command ran meanwhile;
// otherwise 0. It does not wait for a slot, because its caller collects the exits of all commands.
func (g *Group) bill() time.Duration {
	used, known := time.Duration(0), false
	select {
	case cgroupSlots <- struct{}{}:
		used, known = g.readCPU()
		<-cgroupSlots
	default:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	since, alone := used-g.billed, known && g.exact && !g.shared
	g.billed, g.exact = used, known
	if !alone {
		return 0
	}
	return since
}

// remove deletes the directory once it has no holders, no jobs and no processes; zombies do not count.
func (g *Group) remove() bool {
	defer takeCgroupSlot()() // before the lock, in the same order as kill
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

// removed waits for a removal in progress and returns its result.
func (g *Group) removed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gone.Load()
}

// alive reports whether a command of the group runs or has left processes behind.
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

// kill ends every process in the group at once, including forks in progress.
func (g *Group) kill() error {
	defer takeCgroupSlot()()
	f, err := g.open("cgroup.kill", syscall.O_WRONLY)
	if err == syscall.ENOENT && g.removed() {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	g.killed.Store(true)
	_, err = f.Write([]byte("1"))
	return err
}

// pids lists at most limit processes of the group, numbered in the keeper's pid namespace.
func (g *Group) pids(limit int) []int {
	f, err := g.open("cgroup.procs", syscall.O_RDONLY) // takes no lock of the kernel for long: needs no slot
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

// cpu reads the processor time of everything in the group. The kernel counts it in every v2 group, whichever
// controllers are enabled.
func (g *Group) cpu() (time.Duration, bool) {
	defer takeCgroupSlot()()
	return g.readCPU()
}

// readCPU is cpu for a caller with a slot.
func (g *Group) readCPU() (time.Duration, bool) {
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

// groupPath returns the position of a process in the v2 hierarchy, or "".
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
