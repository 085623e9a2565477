package watch

import (
	"syscall"

	"skerry/keeper/internal/inotify"
	"skerry/keeper/internal/linux"
)

const (
	maxQueued = 65_536 // notices; the kernel's own default limit is 16,384

	arrived      = syscall.IN_CREATE | syscall.IN_MOVED_TO
	entryChanged = arrived | syscall.IN_DELETE | syscall.IN_MOVED_FROM
)

// queue holds the notices that were read from the kernel and not yet processed. It counts the changes of each entry, so
// that a scan can see whether the disk is ahead of the processed notices.
type queue struct {
	notices []*inotify.Notice
	changes map[int]map[string]*changes // by watch and name
}

// changes describes the queued creations, removals and moves of one entry.
type changes struct {
	count int
	skip  int  // the first ones, already covered by a scan
	last  bool // the entry exists after the last one
}

func (q *queue) add(n *inotify.Notice) {
	if len(q.notices) >= maxQueued {
		*q = queue{}
		n = &inotify.Notice{WD: -1, Mask: syscall.IN_Q_OVERFLOW}
	}
	q.notices = append(q.notices, n)
	if !n.Has(entryChanged) {
		return
	}
	if q.changes == nil {
		q.changes = map[int]map[string]*changes{}
	}
	if q.changes[n.WD] == nil {
		q.changes[n.WD] = map[string]*changes{}
	}
	c := q.changes[n.WD][n.Name]
	if c == nil {
		c = &changes{}
		q.changes[n.WD][n.Name] = c
	}
	c.count++
	c.last = n.Has(arrived)
}

// next removes the first notice; nil: none. It reports whether a scan already covers the notice.
func (q *queue) next() (n *inotify.Notice, skip bool) {
	if len(q.notices) == 0 {
		return nil, false
	}
	n = q.notices[0]
	q.notices[0] = nil
	if q.notices = q.notices[1:]; len(q.notices) == 0 {
		q.notices = nil
	}
	c := q.changes[n.WD][n.Name]
	skip = c != nil && c.skip > 0
	if c == nil || !n.Has(entryChanged) {
		return n, skip
	}
	if skip {
		c.skip--
	}
	if c.count--; c.count == 0 {
		delete(q.changes[n.WD], n.Name)
		if len(q.changes[n.WD]) == 0 {
			delete(q.changes, n.WD)
		}
	}
	return n, skip
}

func (q *queue) empty() bool { return len(q.notices) == 0 }

// changing reports whether an entry has queued changes.
func (q *queue) changing(wd int, name string) bool { return q.changes[wd][name] != nil }

// cover is called after the first scan of a directory. An entry without queued changes is as the scan found it. Of an
// entry with queued changes only the last one counts, and only if the entry exists afterwards.
func (q *queue) cover(wd int) {
	for _, c := range q.changes[wd] {
		if c.skip = c.count; c.last {
			c.skip--
		}
	}
}

// readAhead reads all notices that the kernel has queued by now.
func (w *Watcher) readAhead() {
	for left := linux.Pending(w.fd); left > 0; {
		n, err := syscall.Read(w.fd, w.buffer)
		if err == syscall.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			return
		}
		inotify.Each(w.buffer[:n], w.queue.add)
		left -= n
	}
}
