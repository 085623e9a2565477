package keeper

import (
	"time"

	"skerry/keeper/internal/ports"
	"skerry/keeper/internal/wire"
)

const (
	maxPortWaits = 64
	maxPortTime  = 60 // seconds; the host asks again
)

// waitForPort answers when a port is open, or the time is over.
func (k *keeper) waitForPort(c *wire.Conn, q *wire.Request) {
	var body struct {
		Port    int     `json:"port"`
		Timeout float64 `json:"timeout_s"`
		Path    *string `json:"http_path"`
	}
	if !decode(c, q, &body) {
		return
	}
	question := ports.Question{Port: body.Port}
	if body.Path != nil {
		question.Path = *body.Path
	}
	switch {
	case body.Port < 1 || body.Port > 65535:
		c.Fail(400, "bad_request", "port: 1 to 65535")
		return
	case !(body.Timeout >= 0 && body.Timeout <= maxPortTime):
		c.Fail(400, "bad_request", "timeout_s: 0 to 60")
		return
	case body.Path != nil && !ports.ValidPath(question.Path):
		c.Fail(400, "bad_request", "http_path: a path of printable ASCII, from / on, of at most 2048 bytes")
		return
	}
	select {
	case k.portWaits <- struct{}{}:
	default:
		c.Fail(429, "too_many", "64 waits for ports are under way, the most there can be")
		return
	}
	defer func() { <-k.portWaits }()
	question.End = time.Now().Add(time.Duration(body.Timeout * float64(time.Second)))
	c.JSON(200, ports.Wait(question, c.HungUp))
}
