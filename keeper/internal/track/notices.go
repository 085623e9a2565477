package track

import (
	"strings"
	"syscall"
	"time"

	"skerry/keeper/internal/ignore"
	"skerry/keeper/internal/inotify"
	"skerry/keeper/internal/linux"
)

const (
	came = syscall.IN_CREATE | syscall.IN_MOVED_TO
	went = syscall.IN_DELETE | syscall.IN_MOVED_FROM
	over = syscall.IN_IGNORED | syscall.IN_UNMOUNT
	self = syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF
	gits = ".git"
)

// listen takes notices as they come, for as long as the eye is open.
func (t *Tracker) listen(e *eye) {
	defer e.file.Close()
	raw, err := e.file.SyscallConn()
	if err != nil {
		return
	}
	for done := false; !done; {
		err := raw.Read(func(uintptr) bool {
			t.mu.Lock()
			some := t.drain(e)
			done = e.closed
			t.mu.Unlock()
			return done || some
		})
		if err != nil {
			return
		}
		time.Sleep(breath) // many notices at a time
	}
}

// drain takes all notices that have come until now; what comes meanwhile may be without end.
func (t *Tracker) drain(e *eye) (some bool) {
	if e.closed {
		return false
	}
	var buffer [8 << 10]byte
	for left := linux.Pending(e.inotify); left > 0 && !e.closed; {
		n, err := syscall.Read(e.inotify, buffer[:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return some
		}
		some = true
		left -= n
		inotify.Each(buffer[:n], func(n *inotify.Notice) { t.take(e, n) })
	}
	return some
}

func (t *Tracker) take(e *eye, n *inotify.Notice) {
	if e.closed {
		return
	}
	if n.Has(syscall.IN_Q_OVERFLOW) {
		t.lose()
		return
	}
	here := e.nodes[n.WD]
	switch {
	case here == nil:
	case n.Has(over | self):
		t.leave(e, here, n)
	case here.role != ordinary:
		t.ref(here, n)
	case n.Name == "": // the directory above tells of it too
	case here == e.top && n.Name == gits:
		if n.Has(came | went) {
			t.touchGit(true)
		}
	default:
		t.change(e, here, n)
	}
}

// leave is for a directory that is no longer there.
func (t *Tracker) leave(e *eye, here *node, n *inotify.Notice) {
	switch {
	case here == e.top:
		t.lose()
	case here.role != ordinary:
		t.touchGit(true)
	case n.Has(over):
		above := here.above
		e.forget(here)
		t.mark(e, above, here.name, mark{tree: true})
	}
}

func (t *Tracker) change(e *eye, here *node, n *inotify.Notice) {
	if n.Has(came|went) && n.Directory() {
		if child := here.below[n.Name]; child != nil {
			e.forget(child)
		}
	}
	if here.marks[n.Name] == nil && !n.Has(came|went) && t.ignored(here, n) {
		return
	}
	t.mark(e, here, n.Name, mark{
		tree: n.Has(came) && n.Directory(), written: n.Has(syscall.IN_MODIFY | syscall.IN_CLOSE_WRITE),
	})
}

func (t *Tracker) ignored(here *node, n *inotify.Notice) bool {
	return t.rules.Judge(here.chain, join(here.path(), n.Name), n.Name, n.Directory()) == ignore.Left
}

func (t *Tracker) mark(e *eye, here *node, name string, m mark) {
	old := here.marks[name]
	if old == nil {
		if e.marked >= maxMarks {
			t.lose()
			return
		}
		if here.marks == nil {
			here.marks = map[string]*mark{}
			e.dirty[here] = true
		}
		old = &mark{}
		here.marks[name] = old
		e.marked++
	}
	t.seq++
	old.seq, old.tree, old.written = t.seq, old.tree || m.tree, old.written || m.written
	t.stir()
}

// ref is for a notice from the project's .git.
func (t *Tracker) ref(here *node, n *inotify.Notice) {
	switch {
	case strings.HasSuffix(n.Name, ".lock"):
	case here.role == ofRefs:
		t.touchGit(n.Directory() && n.Has(came|went))
	case n.Name == "HEAD", n.Name == "packed-refs":
		t.touchGit(false)
	case n.Name == "refs", n.Name == "reftable":
		t.touchGit(true)
	}
}

func (t *Tracker) touchGit(stale bool) {
	t.seq++
	t.git = t.seq
	t.gitStale = t.gitStale || stale
	t.stir()
}
