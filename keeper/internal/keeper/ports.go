package keeper

import (
	"time"

	"skerry/keeper/internal/httpwire"
	"skerry/keeper/internal/ports"
)

const (
	maxPortWaits = 64
	maxPortTime  = 60 // seconds; the host repeats the request
)

// waitForPort responds when a port is open or the time is over.
func (k *keeper) waitForPort(c *httpwire.Conn, q *httpwire.Request) {
	var body struct {
		Port    int     `json:"port"`
		Timeout float64 `json:"timeout_s"`
		Path    *string `json:"http_path"`
	}
	if !decode(c, q, &body) {
		return
	}
	request := ports.Request{Port: body.Port}
	if body.Path != nil {
		request.Path = *body.Path
	}
	switch {
	case body.Port < 1 || body.Port > 65535:
		c.Fail(400, "bad_request", "port: 1 to 65535")
		return
	case !(body.Timeout >= 0 && body.Timeout <= maxPortTime):
		c.Fail(400, "bad_request", "timeout_s: 0 to 60")
		return
	case body.Path != nil && !ports.ValidPath(request.Path):
		c.Fail(400, "bad_request", "http_path: must start with / and have at most 2048 printable ASCII characters")
		return
	}
	select {
	case k.portWaits <- struct{}{}:
	default:
		c.Fail(429, "limit_exceeded", "at most 64 port waits can run at a time")
		return
	}
	defer func() { <-k.portWaits }()
	request.End = time.Now().Add(time.Duration(body.Timeout * float64(time.Second)))
	c.JSON(200, ports.Wait(request, c.HungUp))
}
