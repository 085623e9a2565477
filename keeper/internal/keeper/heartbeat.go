package keeper

import (
	"encoding/json"
	"time"

	"skerry/keeper/internal/files"
	"skerry/keeper/internal/httpwire"
)

const (
	heartbeatInterval = time.Second
	maxLongCalls      = 4 // each holds buffers, fds and a share of the disk bandwidth
)

var longCalls = make(chan struct{}, maxLongCalls)

// heartbeat responds to a call that may take long. While the work runs it sends a blank each second, which JSON permits
// before and between values, so that the host can distinguish a busy keeper from a dead one. When the host hangs up,
// the work ends.
type heartbeat struct {
	c    *httpwire.Conn
	last time.Time
	out  *httpwire.Chunks
}

func newHeartbeat(c *httpwire.Conn) *heartbeat { return &heartbeat{c: c, last: time.Now()} }

// beat must be called often during the work.
func (h *heartbeat) beat() error {
	now := time.Now()
	if now.Sub(h.last) < heartbeatInterval {
		return nil
	}
	h.last = now
	if h.c.HungUp() {
		return files.ErrHungUp
	}
	_, _ = h.body().Write([]byte{' '})
	return h.out.Flush()
}

func (h *heartbeat) body() *httpwire.Chunks {
	if h.out == nil {
		h.out = h.c.Chunked(200)
	}
	return h.out
}

// enter waits for a free slot.
func (h *heartbeat) enter() error {
	for {
		select {
		case longCalls <- struct{}{}:
			return nil
		case <-time.After(heartbeatInterval):
			if err := h.beat(); err != nil {
				return err
			}
		}
	}
}

func (h *heartbeat) leave() { <-longCalls }

// answer ends the call with a value.
func (h *heartbeat) answer(value any) {
	if h.out == nil {
		h.c.JSON(200, value)
		return
	}
	text, _ := json.Marshal(value)
	_, _ = h.out.Write(text)
	_ = h.out.Close()
}

// fail ends the call with an error. If the status line has already been sent, only the body carries the error.
func (h *heartbeat) fail(status int, f httpwire.Failure) {
	if h.out == nil {
		h.c.FailWith(status, f)
		return
	}
	h.answer(map[string]httpwire.Failure{"error": f})
}
