package keeper

import (
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"syscall"
	"time"

	"skerry/keeper/internal/files"
	"skerry/keeper/internal/httpwire"
	"skerry/keeper/internal/match/gitignore"
	"skerry/keeper/internal/track"
)

const (
	maxRules     = 16 << 20 // bytes of a request that starts a tracker
	lineCapacity = 24 << 10 // bytes of entries sent as one line
	maxWaitMS    = 25_000
)

// tracked holds the only tracker of the sandbox.
type tracked struct {
	mu  sync.Mutex
	now *track.Tracker
}

// swap replaces the tracker and ends the previous one.
func (t *tracked) swap(next *track.Tracker) {
	t.mu.Lock()
	old := t.now
	t.now = next
	t.mu.Unlock()
	if old != nil {
		old.End()
	}
}

func (k *keeper) tracker(c *httpwire.Conn, id string) *track.Tracker {
	k.tracked.mu.Lock()
	defer k.tracked.mu.Unlock()
	if t := k.tracked.now; t != nil && t.ID == id {
		return t
	}
	c.Fail(404, "no_tracker", track.ErrUnknown.Error())
	return nil
}

// trackRequest carries bytes, because neither paths nor rules need be UTF-8.
type trackRequest struct {
	Root   []byte `json:"root"`
	Ignore []struct {
		Base  []byte   `json:"base"`
		Lines [][]byte `json:"lines"`
	} `json:"ignore"`
	Tracked [][]byte `json:"tracked"`
	Large   int64    `json:"large"`
}

func (r *trackRequest) rules() *gitignore.Rules {
	var lists []gitignore.List
	for _, one := range r.Ignore {
		lists = append(lists, gitignore.List{Base: string(one.Base), Lines: texts(one.Lines)})
	}
	return gitignore.New(lists, texts(r.Tracked))
}

func texts(all [][]byte) (out []string) {
	for _, one := range all {
		out = append(out, string(one))
	}
	return out
}

// track starts a tracker and ends the previous one.
func (k *keeper) track(c *httpwire.Conn, q *httpwire.Request) {
	request := trackRequest{}
	text, err := q.ReadUpTo(maxRules)
	if err == nil {
		err = json.Unmarshal(text, &request)
	}
	if err != nil || len(request.Root) == 0 || request.Root[0] != '/' || request.Large < 0 {
		c.Fail(400, "bad_request", "root, ignore, tracked, large: invalid request, or larger than 16 MiB")
		return
	}
	t, err := track.Begin(track.Options{Root: string(request.Root), Rules: request.rules(), Large: request.Large})
	if err != nil {
		failTracking(newHeartbeat(c), string(request.Root), err)
		return
	}
	k.tracked.swap(t)
	c.JSON(200, map[string]string{"tracker": t.ID})
}

func (k *keeper) untrack(c *httpwire.Conn, q *httpwire.Request) {
	if t := k.tracker(c, q.Query.Get("tracker")); t != nil {
		k.tracked.swap(nil)
		c.JSON(200, struct{}{})
	}
}

// failTracking responds with an error, even after the response has started.
func failTracking(h *heartbeat, path string, err error) {
	switch {
	case errors.Is(err, files.ErrHungUp):
		h.c.End()
	case errors.Is(err, track.ErrUnknown):
		h.fail(404, httpwire.Failure{Code: "no_tracker", Message: err.Error()})
	case errors.Is(err, track.ErrTooMany):
		h.fail(429, httpwire.Failure{Code: "limit_exceeded", Message: err.Error()})
	case errors.Is(err, track.ErrVirtual):
		h.fail(400, httpwire.Failure{Code: "bad_request", Message: err.Error()})
	default:
		f := failureIn(path, err)
		status, known := statuses[syscall.Errno(f.Errno)]
		if !known {
			status = 400
		}
		h.fail(status, *f)
	}
}

// entryLines collects entries into long lines.
type entryLines struct {
	*heartbeat
	text  []byte
	count int
}

func (l *entryLines) give(e *track.Entry) error {
	before := byte(',')
	if len(l.text) == 0 {
		before = '['
	}
	l.text = e.Append(append(l.text, before))
	if l.count++; len(l.text) >= lineCapacity {
		return l.flush()
	}
	return nil
}

func (l *entryLines) flush() error {
	if len(l.text) == 0 {
		return nil
	}
	_, err := l.body().Write(append(l.text, ']', '\n'))
	l.text = l.text[:0]
	return err
}

func (l *entryLines) line(value any) error {
	text, err := json.Marshal(value)
	if err == nil {
		_, err = l.body().Write(append(text, '\n'))
	}
	return err
}

// scan responds with lines: a head, lists of entries, and finally their number or an error.
func (k *keeper) scan(c *httpwire.Conn, q *httpwire.Request) {
	since, err := strconv.ParseInt(q.Query.Get("since"), 10, 64)
	if err != nil || since < 0 {
		c.Fail(400, "bad_request", "since: must be an integer")
		return
	}
	t := k.tracker(c, q.Query.Get("tracker"))
	if t == nil {
		return
	}
	l := &entryLines{heartbeat: newHeartbeat(c)}
	err = t.Scan(since, track.Sink{Head: func(h track.Head) error { return l.line(h) }, Give: l.give, Beat: l.beat})
	if err == nil {
		if err = l.flush(); err == nil {
			err = l.line(map[string]int{"count": l.count})
		}
		if err == nil {
			err = l.body().Close()
		}
		if err != nil {
			c.End()
		}
		return
	}
	failTracking(l.heartbeat, t.Root(), err)
}

// waitForChange responds after a change, once no further change follows.
func (k *keeper) waitForChange(c *httpwire.Conn, q *httpwire.Request) {
	since, err := strconv.ParseInt(q.Query.Get("since"), 10, 64)
	quiet, other := strconv.ParseInt(q.Query.Get("quiet_ms"), 10, 64)
	maxDelay, third := strconv.ParseInt(q.Query.Get("max_ms"), 10, 64)
	if err != nil || other != nil || third != nil || min(since, quiet, maxDelay) < 0 || max(quiet, maxDelay) > maxWaitMS {
		c.Fail(400, "bad_request", "since, quiet_ms, max_ms: must be integers in range")
		return
	}
	t := k.tracker(c, q.Query.Get("tracker"))
	if t == nil {
		return
	}
	changed, err := t.Wait(since, time.Duration(quiet)*time.Millisecond, time.Duration(maxDelay)*time.Millisecond)
	if err != nil {
		c.Fail(404, "no_tracker", err.Error())
		return
	}
	c.JSON(200, map[string]bool{"changed": changed})
}
