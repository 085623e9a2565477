package pool

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"

	"skerry/keeper/internal/linux"
)

// Group is one v2 sub-cgroup, the home of one launcher and of all that its commands start. A nil Group is a launcher
// without one.
type Group struct {
	parent int
	name   string
}

func newGroup(parent int, n int) (*Group, error) {
	g := &Group{parent: parent, name: "c" + strconv.Itoa(n)}
	if err := syscall.Mkdirat(parent, g.name, 0o755); err != nil && err != syscall.EEXIST {
		return nil, err
	}
	return g, nil
}

func (g *Group) open(file string, flags int) (*os.File, error) {
	fd, err := syscall.Openat(g.parent, g.name+"/"+file, flags|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), file), nil
}

// kill ends every process in the group at once; a fork in flight dies too.
func (g *Group) kill() error {
	f, err := g.open("cgroup.kill", syscall.O_WRONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write([]byte("1"))
	return err
}

// pids lists at most limit processes of the group, in our pid namespace.
func (g *Group) pids(limit int) []int {
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

// remove takes the directory away once the last process is gone; killed ones may need a moment.
func (g *Group) remove() {
	_ = g.kill()
	for wait := time.Millisecond; wait < 4*time.Second; wait *= 2 {
		if err := linux.Rmdirat(g.parent, g.name); err == nil || err == syscall.ENOENT {
			return
		}
		time.Sleep(wait)
	}
}
