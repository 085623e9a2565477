// Package ports waits until something inside listens on a port, and answers there. It makes its own sockets, in the poller
// as everything here: the net package is a third of a binary that every sandbox carries.
package ports

import (
	"strconv"
	"time"
)

const (
	firstPause = 5 * time.Millisecond
	lastPause  = 100 * time.Millisecond
	dialTime   = 2 * time.Second
	answerTime = 10 * time.Second
)

// Question is what to wait for.
type Question struct {
	Port int
	Path string // of a request that has to be answered; "": that it can be connected to is enough
	End  time.Time
}

// Answer says whether it came to pass, and else what was seen last.
type Answer struct {
	Open   bool   `json:"open"`
	Status *int   `json:"status"`
	Last   string `json:"last"`
}

// Wait tries until the port is open, the time is over or the asker is gone. It tries once at least.
func Wait(q Question, gone func() bool) Answer {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		answer := q.try()
		left := time.Until(q.End)
		if answer.Open || left <= 0 || gone() {
			return answer
		}
		time.Sleep(min(pause, left))
	}
}

// try goes through all addresses that the port may be open on; of what they say, the most is told.
func (q Question) try() (best Answer) {
	best.Last = "nothing listens on port " + strconv.Itoa(q.Port)
	for _, to := range []address{localhost4, localhost6} {
		if answer, there := q.ask(to); there {
			if best = answer; best.Open {
				return best
			}
		}
	}
	for _, to := range listening(q.Port) {
		if answer, there := q.ask(to); there {
			if best = answer; best.Open {
				return best
			}
		}
	}
	return best
}

// ask tries one address; there is false when nobody listens at it.
func (q Question) ask(to address) (answer Answer, there bool) {
	conn, err := dial(to, q.Port, q.before(dialTime))
	if err != nil {
		return Answer{Last: to.String() + ": " + err.Error()}, err != errRefused
	}
	defer conn.Close()
	if q.Path == "" {
		return Answer{Open: true}, true
	}
	_ = conn.SetDeadline(q.before(answerTime))
	status, err := request(conn, q.Path)
	switch {
	case err != nil:
		return Answer{Last: err.Error()}, true
	case status >= 500:
		return Answer{Status: &status, Last: "HTTP " + strconv.Itoa(status)}, true
	}
	return Answer{Open: true, Status: &status}, true
}

// before is the end of a step that may take so long; the last try gets a moment even if the time is over.
func (q Question) before(atMost time.Duration) time.Time {
	now := time.Now()
	if end := now.Add(atMost); end.Before(q.End) {
		return end
	}
	if least := now.Add(lastPause); least.After(q.End) {
		return least
	}
	return q.End
}
