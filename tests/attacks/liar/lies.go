package main

import (
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

type act func(*peer, *http.Request) bool

func nested(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }

// firstLies answer the very first call, so that the sandbox never starts.
var firstLies = map[string]act{
	"another build":           func(p *peer, _ *http.Request) bool { return p.say(greeting("0000", 1)) },
	"another protocol":        func(p *peer, _ *http.Request) bool { return p.say(greeting(build, 99)) },
	"first: silence":          func(p *peer, _ *http.Request) bool { return p.silently() },
	"first: endless headers":  func(p *peer, _ *http.Request) bool { p.say("HTTP/1.1 200 OK\r\n"); return p.forever("X-A: b\r\n") },
	"first: one endless line": func(p *peer, _ *http.Request) bool { return p.forever(strings.Repeat("x", 4096)) },
	"first: huge JSON":        func(p *peer, _ *http.Request) bool { return hugeJSON(p) },
	"first: nested JSON":      func(p *peer, _ *http.Request) bool { return p.json(200, nested(100000)) },
	"first: not HTTP":         func(p *peer, _ *http.Request) bool { return p.say("220 smtp ready\r\n\r\n") },
	"first: broken off":       func(p *peer, _ *http.Request) bool { p.say("HTTP/1.1 200 OK\r\nContent-Le"); return false },
	"first: death":            func(*peer, *http.Request) bool { os.Exit(3); return false },
}

func hugeJSON(p *peer) bool {
	p.say(head(200, "Transfer-Encoding: chunked"))
	return p.forever("10000\r\n" + strings.Repeat("[", 0x10000) + "\r\n")
}

// lies answer later calls, by name.
var lies = map[string]act{
	"silence":         func(p *peer, _ *http.Request) bool { return p.silently() },
	"endless headers": func(p *peer, _ *http.Request) bool { p.say("HTTP/1.1 101 OK\r\n"); return p.forever("X-A: b\r\n") },
	"huge JSON":       func(p *peer, _ *http.Request) bool { return hugeJSON(p) },
	"a long error":    func(p *peer, _ *http.Request) bool { return failWith(p, "bad_cwd", strings.Repeat("x", 900000)) },
	"an error in colour": func(p *peer, _ *http.Request) bool {
		return failWith(p, "bad_cwd", `\u001b[31mred\u001b]0;title\u0007`)
	},
	"an unknown error":        func(p *peer, _ *http.Request) bool { return failWith(p, "internal", "admin only") },
	"success without upgrade": func(p *peer, _ *http.Request) bool { return p.json(200, `{}`) },
	"both lengths": func(p *peer, _ *http.Request) bool {
		return p.say(head(400, "Transfer-Encoding: chunked", "Content-Length: 5") + "0\r\n\r\n")
	},
	"more than was asked for": func(p *peer, q *http.Request) bool { honest(p, q); return p.forever("HTTP/1.1 200 OK\r\n\r\n") },
	"death":                   func(*peer, *http.Request) bool { os.Exit(3); return false },

	"no started frame":   run(func(p *peer) { p.frame(stdout, "x"); p.frame(exit, goodExit) }),
	"a bad pid":          run(func(p *peer) { p.frame(started, `{"pid": -1}`) }),
	"a frame of no type": run(func(p *peer) { p.frame(started, `{"pid": 7}`); p.frame(77, "x") }),
	"a frame of 4 GiB": run(func(p *peer) {
		p.frame(started, `{"pid": 7}`)
		p.frameOf(stdout, 1<<32-1, "x")
		p.forever(strings.Repeat("x", 4096))
	}),
	"an empty frame": run(func(p *peer) { p.frame(started, `{"pid": 7}`); p.frame(stdout, "") }),
	"two starts":     run(func(p *peer) { p.frame(started, `{"pid": 7}`); p.frame(started, `{"pid": 8}`) }),
	"half a frame":   run(func(p *peer) { p.frame(started, `{"pid": 7}`); p.frameOf(stdout, 100, "only this") }),
	"no exit frame":  run(func(p *peer) { p.frame(started, `{"pid": 7}`); p.frame(stdout, "out") }),
	"an exit code of 1e300": run(func(p *peer) {
		p.frame(started, `{"pid": 7}`)
		p.frame(exit, strings.Replace(goodExit, `"exit_code": 0`, `"exit_code": 1e300`, 1))
	}),
	"a negative exit code": run(func(p *peer) {
		p.frame(started, `{"pid": 7}`)
		p.frame(exit, strings.Replace(goodExit, `"exit_code": 0`, `"exit_code": -5`, 1))
	}),
	"an endless duration": run(func(p *peer) {
		p.frame(started, `{"pid": 7}`)
		p.frame(exit, strings.Replace(goodExit, `0.1`, `1e308`, 1))
	}),
	"a signal with a path": run(func(p *peer) {
		p.frame(started, `{"pid": 7}`)
		p.frame(exit, strings.Replace(goodExit, `"exit_code": 0, "signal": null`, `"exit_code": null, "signal": "../../x"`, 1))
	}),
	"neither code nor signal": run(func(p *peer) {
		p.frame(started, `{"pid": 7}`)
		p.frame(exit, strings.Replace(goodExit, `"exit_code": 0`, `"exit_code": null`, 1))
	}),
	"a million left behind": run(func(p *peer) {
		p.frame(started, `{"pid": 7}`)
		p.frame(exit, strings.Replace(goodExit, `[]`, `[`+strings.Repeat("1,", 400000)+`1]`, 1))
	}),
	"an exit of nested JSON": run(func(p *peer) { p.frame(started, `{"pid": 7}`); p.frame(exit, nested(200000)) }),
	"an exit with a surprise": run(func(p *peer) {
		p.frame(started, `{"pid": 7}`)
		p.frame(exit, strings.Replace(goodExit, `}`, `, "path": "/etc/shadow"}`, 1))
	}),
	"endless output": run(func(p *peer) {
		p.frame(started, `{"pid": 7}`)
		for p.frame(stdout, strings.Repeat("x", 1<<20)) {
		}
	}),
	"endless tiny frames": run(func(p *peer) {
		p.frame(started, `{"pid": 7}`)
		p.forever(strings.Repeat("\x01\x00\x00\x00\x01x", 10000))
	}),
	"a frame now and then": run(func(p *peer) {
		p.frame(started, `{"pid": 7}`)
		p.slowly("\x01\x00\x00\x00\x01x", 300*time.Millisecond)
	}),
	"a byte now and then": run(func(p *peer) { p.slowly("\x04", 300*time.Millisecond) }),
	"sockets that linger": linger,

	"a file longer than it said":  file(func(p *peer) { p.say(head(200, "Content-Length: 5") + "hello"); p.forever("and more") }),
	"a file shorter than it said": file(func(p *peer) { p.say(head(200, "Content-Length: 500") + "hello") }),
	"a file of an exabyte": file(func(p *peer) {
		p.say(head(200, "Content-Length: 999999999999999999"))
		p.forever(strings.Repeat("x", 65536))
	}),
	"a file without end": file(func(p *peer) {
		p.say(head(200, "Transfer-Encoding: chunked"))
		p.forever("10000\r\n" + strings.Repeat("x", 0x10000) + "\r\n")
	}),
	"a file in bytes": file(func(p *peer) {
		p.say(head(200, "Transfer-Encoding: chunked"))
		p.forever(strings.Repeat("1\r\nx\r\n", 10000))
	}),
	"a chunk of no size": file(func(p *peer) { p.say(head(200, "Transfer-Encoding: chunked") + "zz\r\nx\r\n") }),
	"a length of -1":     file(func(p *peer) { p.say(head(200, "Content-Length: -1") + "x") }),
	"a list of hostile names": file(func(p *peer) {
		p.json(200, entries("../../../../etc/cron.d/x", "a/b", "", "..", `\u001b[31m`, `x\u0000y`, "/etc/passwd"))
	}),
	"a list of wrong types": file(func(p *peer) { p.json(200, `{"entries": {"a": 1}, "more": "yes"}`) }),
	"a list without end": file(func(p *peer) {
		p.say(head(200, "Transfer-Encoding: chunked"))
		p.forever("10000\r\n" + strings.Repeat(" ", 0x10000) + "\r\n")
	}),
	"a list of far too many":   file(func(p *peer) { p.json(200, entries(make([]string, 150000)...)) }),
	"a write that is not read": func(p *peer, _ *http.Request) bool { time.Sleep(time.Hour); return false },
}

func failWith(p *peer, code, message string) bool {
	return p.json(400, `{"error": {"code": "`+code+`", "message": "`+message+`"}}`)
}

// run lies about a command after an honest upgrade.
func run(f func(*peer)) act {
	return func(p *peer, q *http.Request) bool {
		if q.URL.Path != "/v1/processes" || q.Method != "POST" {
			return honest(p, q)
		}
		_, _ = io.Copy(io.Discard, q.Body)
		p.say(upgrade)
		f(p)
		return false
	}
}

// file lies about files.
func file(f func(*peer)) act {
	return func(p *peer, q *http.Request) bool {
		if !strings.HasPrefix(q.URL.Path, "/v1/files") {
			return honest(p, q)
		}
		_, _ = io.Copy(io.Discard, q.Body)
		f(p)
		return false
	}
}

func entries(names ...string) string {
	var b strings.Builder
	b.WriteString(`{"entries": [`)
	for i, name := range names {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString(`{"name": "` + name + `", "path": "/workspace/` + name + `", "type": "file", "size": ` + strconv.Itoa(i) +
			`, "mode": 420, "uid": 0, "gid": 0, "mtime": 1.5, "target": null}`)
	}
	b.WriteString(`], "more": false}`)
	return b.String()
}
