// Command liar is PID 1 of a sandbox in place of the keeper and attacks the host. The variable LIE of the sandbox's
// configuration selects the attack; without one it behaves as honestly as possible without doing anything.
package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

const listenFD = 3

var (
	mu    sync.Mutex
	lie   string
	build string
)

func main() {
	signal.Notify(make(chan os.Signal, 8), syscall.SIGCHLD)
	for {
		fd, _, err := syscall.Accept4(listenFD, syscall.SOCK_CLOEXEC)
		if err != nil {
			continue
		}
		go serve(&peer{fd: fd})
	}
}

// peer is the host's end of a connection. It uses plain blocking reads and writes, so that fds can be sent along.
type peer struct{ fd int }

func (p *peer) Read(b []byte) (int, error) {
	n, err := syscall.Read(p.fd, b)
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return max(n, 0), err
}

func (p *peer) Write(b []byte) (int, error) {
	sent := 0
	for sent < len(b) {
		n, err := syscall.SendmsgN(p.fd, b[sent:], nil, nil, syscall.MSG_NOSIGNAL)
		if err != nil {
			return sent, err
		}
		sent += n
	}
	return sent, nil
}

func (p *peer) say(text string) bool {
	_, err := p.Write([]byte(text))
	return err == nil
}

func (p *peer) close() { _ = syscall.Close(p.fd) }

func serve(p *peer) {
	defer p.close()
	reader := bufio.NewReader(p)
	for {
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		if !answer(p, request) {
			return
		}
	}
}

// answer returns false to close the connection.
func answer(p *peer, q *http.Request) bool {
	if q.URL.Path == "/v1/config" {
		return configure(p, q)
	}
	mu.Lock()
	how := lie
	mu.Unlock()
	if q.URL.Path == "/v1/events" {
		return told(p, how)
	}
	if act, ok := lies[how]; ok {
		return act(p, q)
	}
	return honest(p, q)
}

func configure(p *peer, q *http.Request) bool {
	var config struct {
		Env map[string]string `json:"env"`
	}
	_ = json.NewDecoder(q.Body).Decode(&config)
	mu.Lock()
	lie, build = config.Env["LIE"], config.Env["BUILD"]
	how := lie
	mu.Unlock()
	if act, ok := firstLies[how]; ok {
		return act(p, q)
	}
	return p.say(greeting(build, 1))
}

func honest(p *peer, q *http.Request) bool {
	switch q.Method + " " + q.URL.Path {
	case "GET /v1/hello":
		return p.say(greeting(build, 1))
	case "POST /v1/processes":
		_, _ = io.Copy(io.Discard, q.Body)
		p.say(upgrade)
		p.frame(started, `{"pid": 7}`)
		p.frame(stdout, "I did as I was told\n")
		p.frame(exit, goodExit)
		return false
	case "GET /v1/processes":
		return p.json(200, `{"processes": []}`)
	case "POST /v1/shutdown":
		p.json(200, `{}`)
		os.Exit(0)
	}
	_, _ = io.Copy(io.Discard, q.Body)
	return p.json(404, `{"error": {"code": "errno", "errno": 2, "message": "no such file", "path": "x"}}`)
}
