package keeper

import (
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"syscall"
	"time"

	"skerry/keeper/internal/files"
	"skerry/keeper/internal/ignore"
	"skerry/keeper/internal/track"
	"skerry/keeper/internal/wire"
)

const (
	maxRules  = 16 << 20 // bytes of what a tracker is begun with
	lineRoom  = 24 << 10 // bytes of entries that are sent as one line
	maxWaitMS = 25_000
)

var trackRoutes = map[string]func(*keeper, *wire.Conn, *wire.Request){
	"PUT /v1/track":       (*keeper).track,
	"DELETE /v1/track":    (*keeper).untrack,
	"GET /v1/track/scan":  (*keeper).scan,
	"GET /v1/track/wait":  (*keeper).waitForChange,
	"POST /v1/track/read": (*keeper).readTracked,
}

// tracked is the one tracker of the sandbox.
type tracked struct {
	mu  sync.Mutex
	now *track.Tracker
}

// swap puts another in its place, and ends it.
func (t *tracked) swap(next *track.Tracker) {
	t.mu.Lock()
	old := t.now
	t.now = next
	t.mu.Unlock()
	if old != nil {
		old.End()
	}
}

func (k *keeper) tracker(c *wire.Conn, id string) *track.Tracker {
	k.tracked.mu.Lock()
	defer k.tracked.mu.Unlock()
	if t := k.tracked.now; t != nil && t.ID == id {
		return t
	}
	c.Fail(404, "no_tracker", track.ErrUnknown.Error())
	return nil
}

// trackWish has bytes, because neither paths nor rules need be UTF-8.
type trackWish struct {
	Root   []byte `json:"root"`
	Ignore []struct {
		Base  []byte   `json:"base"`
		Lines [][]byte `json:"lines"`
	} `json:"ignore"`
	Tracked [][]byte `json:"tracked"`
	Large   int64    `json:"large"`
}

func (w *trackWish) rules() *ignore.Rules {
	var lists []ignore.List
	for _, one := range w.Ignore {
		lists = append(lists, ignore.List{Base: string(one.Base), Lines: texts(one.Lines)})
	}
	return ignore.New(lists, texts(w.Tracked))
}

func texts(all [][]byte) (out []string) {
	for _, one := range all {
		out = append(out, string(one))
	}
	return out
}

func (k *keeper) track(c *wire.Conn, q *wire.Request) {
	wish := trackWish{}
	text, err := q.ReadUpTo(maxRules)
	if err == nil {
		err = json.Unmarshal(text, &wish)
	}
	if err != nil || len(wish.Root) == 0 || wish.Root[0] != '/' || wish.Large < 0 {
		c.Fail(400, "bad_request", "root, ignore, tracked, large: a wish that can't be read, or of more than 16 MiB")
		return
	}
	t, err := track.Begin(track.Wish{Root: string(wish.Root), Rules: wish.rules(), Large: wish.Large})
	if err != nil {
		trackingFailed(newPulse(c), string(wish.Root), err)
		return
	}
	k.tracked.swap(t)
	c.JSON(200, map[string]string{"tracker": t.ID})
}

func (k *keeper) untrack(c *wire.Conn, q *wire.Request) {
	if t := k.tracker(c, q.Query.Get("tracker")); t != nil {
		k.tracked.swap(nil)
		c.JSON(200, struct{}{})
	}
}

// trackingFailed answers with an error, also after the answer began.
func trackingFailed(p *pulse, path string, err error) {
	switch {
	case errors.Is(err, files.ErrGone):
		p.c.End()
	case errors.Is(err, track.ErrUnknown):
		p.fail(404, wire.Failure{Code: "no_tracker", Message: err.Error()})
	case errors.Is(err, track.ErrTooMany):
		p.fail(429, wire.Failure{Code: "too_many", Message: err.Error()})
	case errors.Is(err, track.ErrVirtual):
		p.fail(400, wire.Failure{Code: "bad_request", Message: err.Error()})
	default:
		f := failureIn(path, err)
		status, known := statuses[syscall.Errno(f.Errno)]
		if !known {
			status = 400
		}
		p.fail(status, *f)
	}
}

// entryLines makes lines of entries, many to one.
type entryLines struct {
	*pulse
	text  []byte
	count int
}

func (l *entryLines) give(e *track.Entry) error {
	before := byte(',')
	if len(l.text) == 0 {
		before = '['
	}
	l.text = e.Append(append(l.text, before))
	if l.count++; len(l.text) >= lineRoom {
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

// scan answers with lines: a head, lists of entries, and the end, with their number or an error.
func (k *keeper) scan(c *wire.Conn, q *wire.Request) {
	since, err := strconv.ParseInt(q.Query.Get("since"), 10, 64)
	if err != nil || since < 0 {
		c.Fail(400, "bad_request", "since: not a whole number")
		return
	}
	t := k.tracker(c, q.Query.Get("tracker"))
	if t == nil {
		return
	}
	l := &entryLines{pulse: newPulse(c)}
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
	trackingFailed(l.pulse, t.Root(), err)
}

// waitForChange answers once something has changed and it is quiet again.
func (k *keeper) waitForChange(c *wire.Conn, q *wire.Request) {
	since, err := strconv.ParseInt(q.Query.Get("since"), 10, 64)
	quiet, other := strconv.ParseInt(q.Query.Get("quiet_ms"), 10, 64)
	most, third := strconv.ParseInt(q.Query.Get("most_ms"), 10, 64)
	if err != nil || other != nil || third != nil || min(since, quiet, most) < 0 || max(quiet, most) > maxWaitMS {
		c.Fail(400, "bad_request", "since, quiet_ms, most_ms: not whole numbers, or out of range")
		return
	}
	t := k.tracker(c, q.Query.Get("tracker"))
	if t == nil {
		return
	}
	changed, err := t.Wait(since, time.Duration(quiet)*time.Millisecond, time.Duration(most)*time.Millisecond)
	if err != nil {
		c.Fail(404, "no_tracker", err.Error())
		return
	}
	c.JSON(200, map[string]bool{"changed": changed})
}
