package keeper

import (
	"errors"
	"strings"
	"time"

	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/pool"
	"skerry/keeper/internal/process"
	"skerry/keeper/internal/wire"
)

// handle is the route table.
func (k *keeper) handle(c *wire.Conn, q *wire.Request) {
	defer k.quiet.Reset(quietTime)
	route := q.Method + " " + q.Path
	if route == "PUT /v1/config" {
		k.configure(c, q)
		return
	}
	if route == "GET /v1/hello" {
		c.JSON(200, k.greet())
		return
	}
	conf := k.current()
	if conf == nil {
		c.Fail(409, "not_configured", "PUT /v1/config first")
		return
	}
	switch route {
	case "POST /v1/processes":
		k.start(c, q, conf)
	case "GET /v1/processes":
		k.list(c)
	case "POST /v1/shutdown":
		k.shutdown(c, q)
	default:
		if q.Path == "/v1/files" || strings.HasPrefix(q.Path, "/v1/files/") {
			k.file(c, q, conf, route)
			return
		}
		id, found := strings.CutPrefix(q.Path, "/v1/processes/")
		if !found {
			c.Fail(404, "no_route", "there is no "+route)
			return
		}
		k.one(c, q, id)
	}
}

func (k *keeper) start(c *wire.Conn, q *wire.Request, conf *config) {
	if q.Header["upgrade"] != "skerry-frames" {
		c.Fail(400, "bad_request", "Upgrade: skerry-frames is missing")
		return
	}
	request := &process.Request{}
	if !decode(c, q, request) {
		return
	}
	p, err := k.processes.Start(request, conf.defaults())
	var refusal *process.Refusal
	switch {
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
	State    string   `json:"state"`
	Started  float64  `json:"started_at"`
	ExitCode *int     `json:"exit_code"`
	Signal   *string  `json:"signal"`
	TimedOut bool     `json:"timed_out"`
	Children []int    `json:"children"`
}

func describe(p *process.Process) listed {
	d := listed{
		ID: p.Request.ID, Argv: p.Argv, Shell: p.Shell, PID: p.PID, User: p.User.Name, State: "running",
		Started: float64(p.Began.UnixNano()) / 1e9, Children: p.Children(),
	}
	if s := p.Status(); s != nil {
		d.State, d.ExitCode, d.Signal, d.TimedOut = "exited", s.ExitCode, s.Signal, s.TimedOut
	}
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
	case "POST signal":
		k.signal(c, q, p)
	default:
		c.Fail(405, "no_route", "no such call")
	}
}

func (k *keeper) signal(c *wire.Conn, q *wire.Request, p *process.Process) {
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

func (k *keeper) shutdown(c *wire.Conn, q *wire.Request) {
	body := struct {
		Grace float64 `json:"grace_s"`
	}{2}
	if !decode(c, q, &body) {
		return
	}
	if !(body.Grace >= 0 && body.Grace <= 600) {
		c.Fail(400, "bad_request", "grace_s: out of range")
		return
	}
	c.JSON(200, struct{}{})
	k.quit <- time.Duration(body.Grace * float64(time.Second))
}
