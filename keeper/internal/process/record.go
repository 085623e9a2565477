package process

import (
	"bytes"
	"encoding/json"
	"time"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/journal"
	"skerry/keeper/internal/linux"
)

// record is a line of the stored list: the last state of a process, or its removal.
type record struct {
	ID      string         `json:"id"`
	Removed bool           `json:"removed,omitempty"`
	Argv    []string       `json:"argv,omitempty"`
	Shell   *string        `json:"shell,omitempty"`
	PID     int            `json:"pid,omitempty"`
	User    string         `json:"user,omitempty"`
	Session *string        `json:"session,omitempty"`
	Detach  bool           `json:"detach,omitempty"`
	Pty     bool           `json:"pty,omitempty"`
	Channel bool           `json:"channel,omitempty"`
	Remove  bool           `json:"auto_remove,omitempty"`
	Began   int64          `json:"began,omitempty"` // nanoseconds
	Ended   int64          `json:"ended,omitempty"`
	Status  *Status        `json:"status,omitempty"` // nil: it was running
	Offset  int64          `json:"offset,omitempty"`
	Spans   []journal.Span `json:"spans,omitempty"`
}

const (
	maxTime  = 1 << 62
	maxPID   = 1 << 22
	maxBytes = 1 << 53
	maxSpan  = 1e10 // seconds
)

func (p *Process) record() *record {
	r := &record{
		ID: p.Request.ID, Argv: p.Argv, Shell: p.Shell, PID: p.PID, User: p.User.Name, Session: p.Request.Session,
		Detach: p.Request.Detach, Remove: p.Request.Remove, Pty: p.Pty, Channel: p.Channel, Began: p.Began.UnixNano(),
		Status: p.Status(),
	}
	if at := p.EndedAt(); at != nil {
		r.Ended = at.UnixNano()
		_, r.Offset = p.journal.Kept()
		r.Spans = p.journal.Spans()
	}
	return r
}

// parse reads a line that root inside may have written. It returns nil for anything that the keeper does not write.
func parse(line []byte) *record {
	r := &record{}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if d.Decode(r) != nil || d.More() || !validID(r.ID) {
		return nil
	}
	if r.Removed {
		return r
	}
	streamed := 0
	for _, word := range r.Argv {
		streamed += len(word)
	}
	if r.Shell != nil {
		streamed += len(*r.Shell)
	}
	if r.Argv == nil && r.Shell == nil || streamed > 2*maxShown || len(r.Argv) > 2*maxShown || len(r.User) > maxShown {
		return nil
	}
	if r.Session != nil && len(*r.Session) > maxSession || r.PID < 0 || r.PID > maxPID {
		return nil
	}
	if r.Began < 0 || r.Began > maxTime || r.Ended < 0 || r.Ended > maxTime || r.Offset < 0 || r.Offset > maxBytes {
		return nil
	}
	if r.Status != nil && !r.Status.valid() {
		return nil
	}
	return r
}

func (s *Status) valid() bool {
	if (s.ExitCode == nil) == (s.Signal == nil) || s.ExitCode != nil && (*s.ExitCode < 0 || *s.ExitCode > 255) {
		return false
	}
	if s.Signal != nil {
		if signal, known := linux.Signal(*s.Signal); !known || linux.SignalName(signal) != *s.Signal {
			return false
		}
	}
	seconds := s.Duration >= 0 && s.Duration <= maxSpan && s.CPU >= 0 && s.CPU <= maxSpan
	return seconds && s.MaxRSS < maxBytes && len(s.Left) <= 1024
}

// restore makes a finished process from a record. A process that was running when the sandbox stopped was killed by the
// stop.
func (r *record) restore(stopped time.Time) *Process {
	p := &Process{
		Request: &Request{ID: r.ID, Detach: r.Detach, Session: r.Session, Remove: r.Remove},
		User:    &accounts.User{Name: r.User}, Argv: r.Argv, Shell: r.Shell, PID: r.PID, Pty: r.Pty, Channel: r.Channel, Began: time.Unix(0, r.Began),
		endedAt: time.Unix(0, r.Ended), ended: make(chan struct{}), saved: true,
	}
	if r.Status != nil {
		p.status = *r.Status
	} else {
		killed := "KILL"
		p.endedAt = stopped
		p.status = Status{Signal: &killed, Duration: min(max(stopped.Sub(p.Began).Seconds(), 0), maxSpan)}
	}
	p.status.Left = []int{}
	close(p.ended)
	p.listed.Store(true)
	return p
}
