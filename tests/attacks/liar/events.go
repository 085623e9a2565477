package main

import (
	"fmt"
	"strings"
)

const eventsHead = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

func (p *peer) line(text string) bool {
	return p.say(fmt.Sprintf("%x\r\n%s\n\r\n", len(text)+1, text))
}

func hello(seq int, lost bool) string {
	return fmt.Sprintf(`{"seq": %d, "type": "hello", "running": 0, "lost": %t}`, seq, lost)
}

// begun is a plausible event.
func begun(seq int, id string) string {
	return fmt.Sprintf(`{"seq": %d, "at": 1.0, "type": "process_started", "process": {"id": %q, "argv": ["x"], "shell": null, `+
		`"pid": 7, "user": "user", "session": null, "detach": true, "pty": false, "state": "running", "started_at": 1.0, `+
		`"ended_at": null, "duration_s": 0, "cpu_s": 0, "max_rss": 0, "exit_code": null, "signal": null, "timed_out": false, `+
		`"children": [], "kept_from": 0, "offset": 0}}`, seq, id)
}

// listening honestly reports no events.
func listening(p *peer) bool {
	p.say(eventsHead)
	p.line(hello(0, false))
	return p.silently()
}

// eventLies attack a host that listens to events all the time.
var eventLies = map[string]func(*peer) bool{
	"no events at all":  func(p *peer) bool { return p.json(404, `{"error": {"code": "errno", "errno": 2, "message": "x"}}`) },
	"events of no kind": func(p *peer) bool { p.say(eventsHead); return p.forever("6\r\nnoise\n\r\n") },
	"no hello":          func(p *peer) bool { p.say(eventsHead); return p.line(begun(1, "p-aaaaaaaaaa")) },
	"an event without end": func(p *peer) bool {
		p.say(eventsHead)
		return p.forever("10000\r\n" + strings.Repeat("x", 0x10000) + "\r\n")
	},
	"events that end": func(p *peer) bool { p.say(eventsHead); p.line(hello(0, false)); return p.say("0\r\n\r\n") },
	"the same event again": func(p *peer) bool {
		p.say(eventsHead)
		p.line(hello(0, false))
		p.line(begun(1, "p-aaaaaaaaaa"))
		return p.line(begun(1, "p-aaaaaaaaaa"))
	},
	"more at work than can be": func(p *peer) bool {
		p.say(eventsHead)
		p.line(hello(0, false))
		for n := 1; p.line(begun(n, fmt.Sprintf("p-%d", n))); n++ {
		}
		return false
	},
	"lost for ever": func(p *peer) bool {
		p.say(eventsHead)
		for n := 1; p.line(hello(n, true)); n++ {
		}
		return false
	},
	"a flood": func(p *peer) bool {
		p.say(eventsHead)
		p.line(hello(0, false))
		for n := 1; p.line(begun(n, "p-aaaaaaaaaa")); n++ {
		}
		return false
	},
}

func told(p *peer, how string) bool {
	if f, ok := eventLies[how]; ok {
		return f(p)
	}
	return listening(p)
}
