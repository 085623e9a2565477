package keeper

import (
	"time"

	"skerry/keeper/internal/httpwire"
)

// shutdown asks every process to end and stops the sandbox after a grace period.
func (k *keeper) shutdown(c *httpwire.Conn, q *httpwire.Request) {
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
