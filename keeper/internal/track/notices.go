package track

import (
	"strings"
	"syscall"
	"time"

	"skerry/keeper/internal/inotify"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/match/gitignore"
)

const (
	came   = syscall.IN_CREATE | syscall.IN_MOVED_TO
	went   = syscall.IN_DELETE | syscall.IN_MOVED_FROM
	over   = syscall.IN_IGNORED | syscall.IN_UNMOUNT
	self   = syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF
	gitDir = ".git"
)

// listen reads notices while the watch set is open.
func (t *Tracker) listen(w *watchSet) {
	defer w.file.Close()
	raw, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	for done := false; !done; {
		err := raw.Read(func(uintptr) bool {
			t.mu.Lock()
			some := t.drain(w)
			done = w.closed
			t.mu.Unlock()
			return done || some
		})
		if err != nil {
			return
		}
		time.Sleep(readInterval) // to read many notices at a time
	}
}

// drain reads the notices queued so far; more may come without end.
func (t *Tracker) drain(w *watchSet) (some bool) {
	if w.closed {
		return false
	}
	var buffer [8 << 10]byte
	for left := linux.Pending(w.inotify); left > 0 && !w.closed; {
		n, err := syscall.Read(w.inotify, buffer[:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return some
		}
		some = true
		left -= n
		inotify.Each(buffer[:n], func(n *inotify.Notice) { t.take(w, n) })
	}
	return some
}

// take handles one notice. The lock is held.
func (t *Tracker) take(w *watchSet, n *inotify.Notice) {
	if w.closed {
		return
	}
	if n.Has(syscall.IN_Q_OVERFLOW) {
		t.loseTrack()
		return
	}
	here := w.nodes[n.WD]
	switch {
	case here == nil:
	case n.Has(over | self):
		t.leave(w, here, n)
	case here.role != ordinary:
		t.ref(here, n)
	case n.Name == "": // the parent directory has a notice too
	case here == w.top && n.Name == gitDir:
		if n.Has(came | went) {
			t.touchGit(true)
		}
	default:
		t.change(w, here, n)
	}
}

// leave handles a directory that is gone.
func (t *Tracker) leave(w *watchSet, here *node, n *inotify.Notice) {
	switch {
	case here == w.top:
		t.loseTrack()
	case here.role != ordinary:
		t.touchGit(true)
	case n.Has(over):
		above := here.above
		w.forget(here)
		t.mark(w, above, here.name, mark{tree: true})
	}
}

func (t *Tracker) change(w *watchSet, here *node, n *inotify.Notice) {
	if n.Has(came|went) && n.Directory() {
		if child := here.below[n.Name]; child != nil {
			w.forget(child)
		}
	}
	if here.marks[n.Name] == nil && !n.Has(came|went) && t.ignored(here, n) {
		return
	}
	t.mark(w, here, n.Name, mark{
		tree: n.Has(came) && n.Directory(), written: n.Has(syscall.IN_MODIFY | syscall.IN_CLOSE_WRITE),
	})
}

func (t *Tracker) ignored(here *node, n *inotify.Notice) bool {
	return t.rules.Judge(here.chain, join(here.path(), n.Name), n.Name, n.Directory()) == gitignore.Ignored
}

// mark records a change of a name with the next number. Too many marks end the watching.
func (t *Tracker) mark(w *watchSet, here *node, name string, m mark) {
	old := here.marks[name]
	if old == nil {
		if w.marked >= maxMarks {
			t.loseTrack()
			return
		}
		if here.marks == nil {
			here.marks = map[string]*mark{}
			w.dirty[here] = true
		}
		old = &mark{}
		here.marks[name] = old
		w.marked++
	}
	t.seq++
	old.seq, old.tree, old.written = t.seq, old.tree || m.tree, old.written || m.written
	t.notify()
}

// ref handles a notice from the project's .git.
func (t *Tracker) ref(here *node, n *inotify.Notice) {
	switch {
	case strings.HasSuffix(n.Name, ".lock"):
	case here.role == refsRole:
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
	t.notify()
}
