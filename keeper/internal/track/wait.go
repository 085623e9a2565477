package track

import "time"

const (
	maxWait           = 25 * time.Second // then no change is reported
	unwatchedInterval = 10 * time.Second // between scans without watches
)

// Wait returns true after a change later than since, once no further change follows for quiet, and at the latest after
// maxDelay. It returns false after a long time without a change, or when another wait begins.
func (t *Tracker) Wait(since int64, quiet, maxDelay time.Duration) (bool, error) {
	stop := t.replaceWaiter()
	end := time.NewTimer(maxWait)
	defer end.Stop()
	var first time.Time
	for {
		next, changed, at := t.changedSince(since)
		if next == nil {
			return false, ErrUnknown
		}
		var due <-chan time.Time
		if changed {
			if first.IsZero() {
				first = time.Now()
			}
			left := time.Until(at.Add(quiet))
			if !at.After(time.Now()) { // otherwise nothing is watched, and the next scan can wait
				left = min(left, time.Until(first.Add(maxDelay)))
			}
			if left <= 0 {
				return true, nil
			}
			due = time.After(left)
		}
		select {
		case <-next:
		case <-due:
		case <-stop:
			return false, nil
		case <-end.C:
			return changed, nil
		}
	}
}

// replaceWaiter ends the previous wait.
func (t *Tracker) replaceWaiter() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiterReplaced != nil {
		close(t.waiterReplaced)
	}
	t.waiterReplaced = make(chan struct{})
	return t.waiterReplaced
}

// changedSince reports whether and when something changed. Without watches, it reports a change now and then.
func (t *Tracker) changedSince(since int64) (next <-chan struct{}, changed bool, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return nil, false, at
	}
	t.waiters++
	if t.unwatched {
		return t.waiting, true, t.lastChange.Add(unwatchedInterval)
	}
	return t.waiting, t.seq > since, t.lastChange
}
