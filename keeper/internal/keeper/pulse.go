package keeper

import (
	"encoding/json"
	"time"

	"skerry/keeper/internal/files"
	"skerry/keeper/internal/wire"
)

const (
	pulseTime = time.Second
	maxWorks  = 4 // each holds buffers, fds and a share of the disk
)

var works = make(chan struct{}, maxWorks)

// pulse answers a call that may take its time. Each second that it works it sends a blank, which JSON allows before and
// between values: so the host can tell a keeper that works from one that is dead. When the host hangs up, the work ends.
type pulse struct {
	c    *wire.Conn
	last time.Time
	out  *wire.Chunks
}

func newPulse(c *wire.Conn) *pulse { return &pulse{c: c, last: time.Now()} }

// beat is called often by whoever works.
func (p *pulse) beat() error {
	now := time.Now()
	if now.Sub(p.last) < pulseTime {
		return nil
	}
	p.last = now
	if p.c.HungUp() {
		return files.ErrGone
	}
	_, _ = p.body().Write([]byte{' '})
	return p.out.Flush()
}

func (p *pulse) body() *wire.Chunks {
	if p.out == nil {
		p.out = p.c.Chunked(200)
	}
	return p.out
}

// enter waits until it is this work's turn.
func (p *pulse) enter() error {
	for {
		select {
		case works <- struct{}{}:
			return nil
		case <-time.After(pulseTime):
			if err := p.beat(); err != nil {
				return err
			}
		}
	}
}

func (p *pulse) leave() { <-works }

// answer ends the call with a value.
func (p *pulse) answer(value any) {
	if p.out == nil {
		p.c.JSON(200, value)
		return
	}
	text, _ := json.Marshal(value)
	_, _ = p.out.Write(text)
	_ = p.out.Close()
}

// fail ends the call with an error. A status that has been sent already can't say so: then the body alone does.
func (p *pulse) fail(status int, f wire.Failure) {
	if p.out == nil {
		p.c.FailWith(status, f)
		return
	}
	p.answer(map[string]wire.Failure{"error": f})
}
