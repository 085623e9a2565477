package keeper

import (
	"errors"
	"io"
	"strconv"

	"skerry/keeper/internal/httpwire"
	"skerry/keeper/internal/journal"
	"skerry/keeper/internal/launchers"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/process"
)

const (
	frames          = "skerry-frames"
	maxExchangeBody = 32 << 20 // bytes for a channel in one request
)

// start starts a run and streams its frames, or spawns a detached process.
func (k *keeper) start(c *httpwire.Conn, q *httpwire.Request) {
	request := &process.Request{}
	if !decode(c, q, request) {
		return
	}
	if upgrade := q.Header["upgrade"] == frames; upgrade == request.Detach {
		c.Fail(400, "bad_request", "set either the header Upgrade: skerry-frames or detach")
		return
	}
	p, err := k.processes.Start(request, k.current().defaults())
	var invalid *process.RequestError
	switch {
	case err == nil && request.Detach:
		c.JSON(200, describeProcess(p))
	case err == nil:
		p.Stream(c)
	case errors.As(err, &invalid):
		c.Fail(400, invalid.Code, invalid.Message)
	case errors.Is(err, process.ErrIDTaken):
		c.Fail(409, "conflict", err.Error())
	case errors.Is(err, process.ErrTooMany):
		c.Fail(429, "limit_exceeded", err.Error())
	case errors.Is(err, launchers.ErrGone):
		c.Fail(409, "interrupted", "a process inside killed the command's launcher; the command may have started")
	default:
		c.Fail(429, "resource_exhausted", "the sandbox cannot start another process: "+err.Error())
	}
}

type processInfo struct {
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

// describeProcess describes a process for lists and events.
func describeProcess(p *process.Process) processInfo {
	d := processInfo{
		ID: p.Request.ID, Argv: p.Argv, Shell: p.Shell, PID: p.PID, User: p.User.Name, Session: p.Request.Session,
		Detach: p.Request.Detach, Pty: p.Pty, Channel: p.Channel, State: "running", Started: float64(p.Began.UnixNano()) / 1e9,
		Children: p.Children(), Cgroup: p.Cgroup(),
	}
	if s := p.Status(); s != nil {
		ended := float64(p.EndedAt().UnixNano()) / 1e9
		d.State, d.ExitCode, d.Signal, d.TimedOut = "exited", s.ExitCode, s.Signal, s.TimedOut
		d.Ended, d.Duration, d.CPU, d.MaxRSS = &ended, s.Duration, s.CPU, s.MaxRSS
	}
	d.KeptFrom, d.Offset = p.Kept() // last: a process that is seen as ended has all its output
	if d.Children == nil {
		d.Children = []int{}
	}
	return d
}

func (k *keeper) list(c *httpwire.Conn, _ *httpwire.Request) {
	all := []processInfo{}
	for _, p := range k.processes.All() {
		all = append(all, describeProcess(p))
	}
	c.JSON(200, map[string]any{"processes": all})
}

func showProcess(_ *keeper, c *httpwire.Conn, _ *httpwire.Request, p *process.Process) {
	c.JSON(200, describeProcess(p))
}

func removeProcess(k *keeper, c *httpwire.Conn, _ *httpwire.Request, p *process.Process) {
	if !k.processes.Remove(p) {
		c.Fail(409, "running", "the process is still running")
		return
	}
	c.JSON(200, struct{}{})
}

// output streams recorded output from an offset on.
func output(_ *keeper, c *httpwire.Conn, q *httpwire.Request, p *process.Process) {
	v := process.View{Follow: q.Query.Get("follow") == "1", Pace: q.Query.Get("pace") == "1"}
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
		c.Fail(400, "bad_request", "the header Upgrade: skerry-frames is missing")
	case err != nil:
		c.Fail(400, "bad_request", "since, limit: must be integers")
	default:
		if err := p.Output(c, v); errors.Is(err, journal.ErrRange) {
			_, end := p.Kept()
			c.Fail(400, "bad_range", "the output has "+strconv.FormatInt(end, 10)+" bytes")
		}
	}
}

// exchange passes the body to the program's channel and streams the output.
func exchange(_ *keeper, c *httpwire.Conn, q *httpwire.Request, p *process.Process) {
	if q.Header["upgrade"] != frames {
		c.Fail(400, "bad_request", "the header Upgrade: skerry-frames is missing")
		return
	}
	length := q.Length()
	if length < 0 || length > maxExchangeBody {
		c.Fail(400, "bad_request", "the body must have a Content-Length of at most 32 MiB")
		return
	}
	switch err := p.Exchange(c, q.Body, length); err {
	case process.ErrChannel:
		c.Fail(409, "no_channel", err.Error())
	case process.ErrBusy:
		c.Fail(409, "busy", err.Error())
	case process.ErrEnded:
		c.Fail(409, "not_running", err.Error())
	}
}

// stdin passes the body to the program at the program's speed, without a time limit.
func stdin(_ *keeper, c *httpwire.Conn, q *httpwire.Request, p *process.Process) {
	err := p.Write(nil, c.HungUp)
	if err == nil {
		err = copyBody(c, q.Body, p)
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
		c.Fail(409, "stdin_closed", "the process has closed its stdin")
	case process.ErrEnded:
		c.Fail(409, "not_running", "the process has ended")
	default:
		c.End()
	}
}

// copyBody writes the body to stdin piece by piece: each piece is in the pipe before the next is read, so nothing is
// buffered.
func copyBody(c *httpwire.Conn, body io.Reader, p *process.Process) error {
	defer c.AllowSlowBody(p.Ended())()
	buffer := make([]byte, 32<<10) // not from a pool: an abandoned write may still read it
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

func resize(_ *keeper, c *httpwire.Conn, q *httpwire.Request, p *process.Process) {
	var size process.Size
	if !decode(c, q, &size) {
		return
	}
	if !size.Valid() {
		c.Fail(400, "bad_request", "cols, rows: must be 1 to 10000")
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

func sendSignal(_ *keeper, c *httpwire.Conn, q *httpwire.Request, p *process.Process) {
	var body struct {
		Signal string `json:"signal"`
	}
	if !decode(c, q, &body) {
		return
	}
	s, ok := linux.Signal(body.Signal)
	if !ok {
		c.Fail(400, "bad_signal", "unknown signal: "+body.Signal)
		return
	}
	if err := p.Signal(s); err != nil {
		c.Fail(409, "not_running", "the process has ended")
		return
	}
	c.JSON(200, struct{}{})
}
