package track

import "time"

const (
	waits     = 25 * time.Second // then there was nothing
	blindTime = 10 * time.Second // between looks where nothing can be watched
)

// Wait returns true once something happened after since and nothing more did for quiet, or for most since then; false
// after a while of nothing, or when somebody else begins to wait.
func (t *Tracker) Wait(since int64, quiet, most time.Duration) (bool, error) {
	stop := t.relieve()
	end := time.NewTimer(waits)
	defer end.Stop()
	var first time.Time
	for {
		next, changed, at := t.standing(since)
		if next == nil {
			return false, ErrUnknown
		}
		var due <-chan time.Time
		if changed {
			if first.IsZero() {
				first = time.Now()
			}
			left := time.Until(at.Add(quiet))
			if !at.After(time.Now()) { // else nothing is watched, and there is no hurry
				left = min(left, time.Until(first.Add(most)))
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

// relieve ends the wait of whoever waited until now.
func (t *Tracker) relieve() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.relieved != nil {
		close(t.relieved)
	}
	t.relieved = make(chan struct{})
	return t.relieved
}

// standing says whether something happened, and when last. Where nothing can be watched, something is taken to happen now
// and then.
func (t *Tracker) standing(since int64) (next <-chan struct{}, changed bool, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return nil, false, at
	}
	t.waiters++
	if t.blind {
		return t.waiting, true, t.stirred.Add(blindTime)
	}
	return t.waiting, t.seq > since, t.stirred
}
