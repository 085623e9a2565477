// Package ports waits until a program inside listens on a port and answers there. It uses its own sockets in the
// poller, because package net is a third of a binary that every sandbox carries.
//
// It tries 127.0.0.1 and ::1, then the addresses with a listener in /proc/net/tcp and tcp6. With a path it sends a
// plain GET and reads the first line of the response, at most 1 KiB and 10 s: any status below 500 counts as open.
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
	graceTime  = 500 * time.Millisecond // under load the kernel may need more than 100 ms to refuse a connection
)

// Request is a port to wait for.
type Request struct {
	Port int
	Path string // path of an HTTP request that must succeed; "": a connection suffices
	End  time.Time
}

// Answer is the result of a wait; Last is the last obstacle.
type Answer struct {
	Open   bool   `json:"open"`
	Status *int   `json:"status"`
	Last   string `json:"last"`
}

// Wait tries until the port is open, the time is over or the host has gone, but at least once.
func Wait(q Request, gone func() bool) Answer {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		answer := q.try()
		left := time.Until(q.End)
		if answer.Open || left <= 0 || gone() {
			return answer
		}
		time.Sleep(min(pause, left))
	}
}

// try tries all addresses of the port and returns the most informative answer.
func (q Request) try() (best Answer) {
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

// ask tries one address; there is false if it has no listener.
func (q Request) ask(to address) (answer Answer, there bool) {
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

// before returns the deadline of a step; the last attempt gets a moment even after the end.
func (q Request) before(atMost time.Duration) time.Time {
	now := time.Now()
	if end := now.Add(atMost); end.Before(q.End) {
		return end
	}
	if least := now.Add(graceTime); least.After(q.End) {
		return least
	}
	return q.End
}
