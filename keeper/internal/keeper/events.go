package keeper

import (
	"encoding/json"
	"errors"
	"strconv"

	"skerry/keeper/internal/process"
	"skerry/keeper/internal/wire"
)

type hello struct {
	Seq     int64  `json:"seq"`
	Type    string `json:"type"`
	Running int    `json:"running"`
	Lost    bool   `json:"lost"`
}

type happened struct {
	Seq     int64   `json:"seq"`
	At      float64 `json:"at"`
	Type    string  `json:"type"`
	Process listed  `json:"process"`
}

// events answers with a line for each event, for as long as the host listens. A host that falls too far behind is told so by
// another hello.
func (k *keeper) events(c *wire.Conn, q *wire.Request) {
	all := &k.processes.Events
	since, _ := all.Now()
	if text := q.Query.Get("since"); text != "" {
		var err error
		if since, err = strconv.ParseInt(text, 10, 64); err != nil || since < 0 {
			c.Fail(400, "bad_request", "since: not a whole number")
			return
		}
	}
	left := c.Left()
	err := c.Head(200, "Content-Type: application/x-ndjson", "Transfer-Encoding: chunked")
	for err == nil {
		last, running := all.Now()
		lost := !all.Has(since) // also for a host that knows events of an earlier life
		if lost {
			since = last
		}
		if err = sendLine(c, hello{last, "hello", running, lost}); err == nil {
			since, err = follow(c, all, since, left)
		}
	}
}

var errLeft = errors.New("the host has left")

// follow tells all events after the given one, until some are lost.
func follow(c *wire.Conn, all *process.Events, since int64, left <-chan struct{}) (int64, error) {
	for {
		event, ok := all.After(since, left)
		if !ok && all.Has(since) {
			return since, errLeft
		}
		if !ok {
			return since, nil
		}
		since = event.Seq
		if err := sendLine(c, tell(event)); err != nil {
			return since, err
		}
	}
}

func sendLine(c *wire.Conn, value any) error {
	line, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return c.WriteChunk(append(line, '\n'))
}

// tell says what a process was like when it happened.
func tell(e process.Event) happened {
	d := describe(e.Process)
	if !e.Ended {
		d = listed{
			ID: d.ID, Argv: d.Argv, Shell: d.Shell, PID: d.PID, User: d.User, Session: d.Session, Detach: d.Detach, Pty: d.Pty,
			State: "running", Started: d.Started, Children: []int{}, Cgroup: d.Cgroup,
		}
	}
	h := happened{Seq: e.Seq, At: float64(e.At.UnixNano()) / 1e9, Type: "process_started", Process: d}
	if e.Ended {
		h.Type = "process_ended"
	}
	return h
}
