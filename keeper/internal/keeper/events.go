package keeper

import (
	"encoding/json"
	"errors"
	"strconv"

	"skerry/keeper/internal/httpwire"
	"skerry/keeper/internal/process"
)

type eventsHello struct {
	Seq     int64  `json:"seq"`
	Type    string `json:"type"`
	Running int    `json:"running"`
	Lost    bool   `json:"lost"`
}

type eventMessage struct {
	Seq     int64       `json:"seq"`
	At      float64     `json:"at"`
	Type    string      `json:"type"`
	Process processInfo `json:"process"`
}

// events sends a line for each event while the host listens. A host that falls too far behind gets another hello.
func (k *keeper) events(c *httpwire.Conn, q *httpwire.Request) {
	all := &k.processes.Events
	since, _ := all.Now()
	if text := q.Query.Get("since"); text != "" {
		var err error
		if since, err = strconv.ParseInt(text, 10, 64); err != nil || since < 0 {
			c.Fail(400, "bad_request", "since: must be an integer")
			return
		}
	}
	left := c.PeerGone()
	err := c.Head(200, "Content-Type: application/x-ndjson", "Transfer-Encoding: chunked")
	for err == nil {
		last, running := all.Now()
		lost := !all.Has(since) // also for a host that knows events from before a restart
		if lost {
			since = last
		}
		if err = sendLine(c, eventsHello{last, "hello", running, lost}); err == nil {
			since, err = follow(c, all, since, left)
		}
	}
}

var errHungUp = errors.New("the host has hung up")

// follow sends all events after the given one until some are lost.
func follow(c *httpwire.Conn, all *process.Events, since int64, left <-chan struct{}) (int64, error) {
	for {
		event, ok := all.After(since, left)
		if !ok && all.Has(since) {
			return since, errHungUp
		}
		if !ok {
			return since, nil
		}
		since = event.Seq
		if err := sendLine(c, newEventMessage(event)); err != nil {
			return since, err
		}
	}
}

func sendLine(c *httpwire.Conn, value any) error {
	line, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return c.WriteChunk(append(line, '\n'))
}

// newEventMessage describes a process as it was at the time of the event.
func newEventMessage(e process.Event) eventMessage {
	d := describeProcess(e.Process)
	if !e.Ended {
		d = processInfo{
			ID: d.ID, Argv: d.Argv, Shell: d.Shell, PID: d.PID, User: d.User, Session: d.Session, Detach: d.Detach, Pty: d.Pty,
			State: "running", Started: d.Started, Children: []int{}, Cgroup: d.Cgroup,
		}
	}
	h := eventMessage{Seq: e.Seq, At: float64(e.At.UnixNano()) / 1e9, Type: "process_started", Process: d}
	if e.Ended {
		h.Type = "process_ended"
	}
	return h
}
