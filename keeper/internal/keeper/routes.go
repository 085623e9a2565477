package keeper

import (
	"strings"
	"time"

	"skerry/keeper/internal/own"
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
	case "GET /v1/events":
		k.events(c, q)
	case "POST /v1/ports/wait":
		k.waitForPort(c, q)
	case "PUT /v1/own":
		k.putOwn(c, q)
	case "PUT /v1/own/review":
		k.putReview(c, q)
	case "POST /v1/shutdown":
		k.shutdown(c, q)
	default:
		if serve := trackRoutes[route]; serve != nil {
			serve(k, c, q)
			return
		}
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

func (k *keeper) putOwn(c *wire.Conn, q *wire.Request) {
	content := &own.Content{}
	if !decode(c, q, content) {
		return
	}
	putAnswer(c, k.own.Put(content))
}

func (k *keeper) putReview(c *wire.Conn, q *wire.Request) {
	body := struct {
		Content []byte `json:"content"`
	}{}
	if decode(c, q, &body) {
		putAnswer(c, k.own.PutReview(body.Content))
	}
}

func putAnswer(c *wire.Conn, err error) {
	switch {
	case err == nil:
		c.JSON(200, struct{}{})
	case err == own.ErrName:
		c.Fail(400, "bad_request", err.Error())
	default:
		c.Fail(507, "no_room", err.Error())
	}
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
