package keeper

import (
	"errors"
	"io"
	"strconv"
	"strings"

	"skerry/keeper/internal/journal"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/pool"
	"skerry/keeper/internal/process"
	"skerry/keeper/internal/wire"
)

const (
	frames  = "skerry-frames"
	maxTurn = 32 << 20 // bytes for a channel at once
)

// start begins a run, whose frames follow, or spawns what goes on by itself.
func (k *keeper) start(c *wire.Conn, q *wire.Request, conf *config) {
	request := &process.Request{}
	if !decode(c, q, request) {
		return
	}
	if upgrade := q.Header["upgrade"] == frames; upgrade == request.Detach {
		c.Fail(400, "bad_request", "Upgrade: skerry-frames, or detach, and not both")
		return
	}
	p, err := k.processes.Start(request, conf.defaults())
	var refusal *process.Refusal
	switch {
	case err == nil && request.Detach:
		c.JSON(200, describe(p))
	case err == nil:
		p.Stream(c)
	case errors.As(err, &refusal):
		c.Fail(400, refusal.Code, refusal.Message)
	case errors.Is(err, process.ErrTaken):
		c.Fail(409, "conflict", err.Error())
	case errors.Is(err, process.ErrTooMany):
		c.Fail(429, "too_many", err.Error())
	case errors.Is(err, pool.ErrGone):
		c.Fail(409, "interrupted", "somebody inside killed the command's launcher; it may have begun")
	default:
		c.Fail(429, "no_room", "the sandbox can't start another process: "+err.Error())
	}
}

type listed struct {
	ID       string   `json:"id"`
	Argv     []string `json:"argv"`
	Shell    *string  `json:"shell"`
	PID      int      `json:"pid"`
	User     string   `json:"user"`
	Session  *string  `json:"session"`
	Detach   bool     `json:"detach"`
	Pty      bool     `json:"pty"`
	Channel  bool     `json:"channel"`
	State    string   `json:"state"`
	Started  float64  `json:"started_at"`
	Ended    *float64 `json:"ended_at"`
	Duration float64  `json:"duration_s"`
	CPU      float64  `json:"cpu_s"`
	MaxRSS   uint64   `json:"max_rss"`
	ExitCode *int     `json:"exit_code"`
	Signal   *string  `json:"signal"`
	TimedOut bool     `json:"timed_out"`
	Children []int    `json:"children"`
	KeptFrom int64    `json:"kept_from"`
	Offset   int64    `json:"offset"`
	Cgroup   uint64   `json:"cgroup"`
}

func describe(p *process.Process) listed {
	d := listed{
		ID: p.Request.ID, Argv: p.Argv, Shell: p.Shell, PID: p.PID, User: p.User.Name, Session: p.Request.Session,
		Detach: p.Request.Detach, Pty: p.Pty, Channel: p.Channel, State: "running", Started: float64(p.Began.UnixNano()) / 1e9,
		Children: p.Children(), Cgroup: p.Cgroup(),
	}
	if s := p.Status(); s != nil {
		ended := float64(p.EndedAt().UnixNano()) / 1e9
		d.State, d.ExitCode, d.Signal, d.TimedOut = "exited", s.ExitCode, s.Signal, s.TimedOut
		d.Ended, d.Duration, d.CPU, d.MaxRSS = &ended, s.Duration, s.CPU, s.MaxRSS
	}
	d.KeptFrom, d.Offset = p.Kept() // last: an end that is seen has all its output
	if d.Children == nil {
		d.Children = []int{}
	}
	return d
}

func (k *keeper) list(c *wire.Conn) {
	all := []listed{}
	for _, p := range k.processes.All() {
		all = append(all, describe(p))
	}
	c.JSON(200, map[string]any{"processes": all})
}

func (k *keeper) one(c *wire.Conn, q *wire.Request, rest string) {
	id, verb, _ := strings.Cut(rest, "/")
	p := k.processes.Get(id)
	if p == nil {
		c.Fail(404, "no_process", "there is no process "+id)
		return
	}
	switch q.Method + " " + verb {
	case "GET ":
		c.JSON(200, describe(p))
	case "DELETE ":
		if !k.processes.Remove(p) {
			c.Fail(409, "running", "the process still runs")
			return
		}
		c.JSON(200, struct{}{})
	case "GET output":
		output(c, q, p)
	case "POST turn":
		turn(c, q, p)
	case "POST stdin":
		stdin(c, q, p)
	case "POST signal":
		sendSignal(c, q, p)
	case "POST resize":
		resize(c, q, p)
	default:
		c.Fail(405, "no_route", "no such call")
	}
}

func output(c *wire.Conn, q *wire.Request, p *process.Process) {
	v := process.View{Follow: q.Query.Get("follow") == "1"}
	var err error
	if text := q.Query.Get("since"); text != "" {
		v.Since, err = strconv.ParseInt(text, 10, 64)
	}
	if text := q.Query.Get("limit"); err == nil && text != "" {
		if v.Limit, err = strconv.ParseInt(text, 10, 64); err == nil && v.Limit < 1 {
			err = strconv.ErrRange
		}
	}
	switch {
	case q.Header["upgrade"] != frames:
		c.Fail(400, "bad_request", "Upgrade: skerry-frames is missing")
	case err != nil:
		c.Fail(400, "bad_request", "since and limit are whole numbers")
	default:
		if err := p.Output(c, v); errors.Is(err, journal.ErrRange) {
			_, end := p.Kept()
			c.Fail(400, "bad_range", "the output has "+strconv.FormatInt(end, 10)+" bytes")
		}
	}
}

// turn has the body handed to the program's channel, and shows what comes of it.
func turn(c *wire.Conn, q *wire.Request, p *process.Process) {
	if q.Header["upgrade"] != frames {
		c.Fail(400, "bad_request", "Upgrade: skerry-frames is missing")
		return
	}
	length := q.Length()
	if length < 0 || length > maxTurn {
		c.Fail(400, "bad_request", "the body has a length, of 32 MiB at most")
		return
	}
	switch err := p.Turn(c, q.Body, length); err {
	case process.ErrChannel:
		c.Fail(409, "no_channel", err.Error())
	case process.ErrBusy:
		c.Fail(409, "busy", err.Error())
	case process.ErrEnded:
		c.Fail(409, "not_running", err.Error())
	}
}

// stdin hands the body to the program, at its speed. It may take as long as the host likes.
func stdin(c *wire.Conn, q *wire.Request, p *process.Process) {
	err := p.Write(nil, c.HungUp)
	if err == nil {
		err = pour(c, q.Body, p)
	}
	if err == nil && q.Query.Get("close") == "1" {
		if err = p.CloseStdin(c.HungUp); err == process.ErrEnded {
			err = nil
		}
	}
	switch err {
	case nil:
		c.JSON(200, struct{}{})
	case process.ErrStdin:
		c.Fail(409, "stdin_closed", "the process does not read its stdin any more")
	case process.ErrEnded:
		c.Fail(409, "not_running", "the process has ended")
	default:
		c.End()
	}
}

func pour(c *wire.Conn, body io.Reader, p *process.Process) error {
	defer c.Unhurried(p.Ended())()
	buffer := make([]byte, 32<<10) // not a lent one: a write that was given up may still look at it
	for {
		n, err := body.Read(buffer)
		if n > 0 {
			if err := p.Write(buffer[:n], c.HungUp); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil && !p.Running():
			return process.ErrEnded
		case err != nil:
			return err
		}
	}
}

func resize(c *wire.Conn, q *wire.Request, p *process.Process) {
	var size process.Size
	if !decode(c, q, &size) {
		return
	}
	if !size.Valid() {
		c.Fail(400, "bad_request", "a terminal has 1 to 10000 columns and rows")
		return
	}
	switch p.Resize(size) {
	case nil:
		c.JSON(200, struct{}{})
	case process.ErrTerminal:
		c.Fail(409, "no_terminal", process.ErrTerminal.Error())
	default:
		c.Fail(409, "not_running", "the process has ended")
	}
}

func sendSignal(c *wire.Conn, q *wire.Request, p *process.Process) {
	var body struct {
		Signal string `json:"signal"`
	}
	if !decode(c, q, &body) {
		return
	}
	s, ok := linux.Signal(body.Signal)
	if !ok {
		c.Fail(400, "bad_signal", "there is no signal "+body.Signal)
		return
	}
	if err := p.Signal(s); err != nil {
		c.Fail(409, "not_running", "the process has ended")
		return
	}
	c.JSON(200, struct{}{})
}
