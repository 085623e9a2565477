package main

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"time"
)

const (
	stdout  byte = 1
	stderr  byte = 2
	exit    byte = 3
	started byte = 4

	upgrade  = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: skerry-frames\r\n\r\n"
	goodExit = `{"exit_code": 0, "signal": null, "timed_out": false, "duration_s": 0.1, "cpu_s": 0.1, "max_rss": 1, "left": []}`
)

func greeting(build string, protocol int) string {
	user := `{"name": "user", "uid": 1000, "gid": 1000, "home": "/home/user"}`
	body := fmt.Sprintf(`{"build": %q, "protocol": %d, "uptime_s": 1.0, "processes": 0, "shell": "/bin/bash", "user": %s}`, build, protocol, user)
	return head(200, "Content-Type: application/json", "Content-Length: "+strconv.Itoa(len(body))) + body
}

func head(status int, headers ...string) string {
	text := "HTTP/1.1 " + strconv.Itoa(status) + " Whatever\r\n"
	for _, h := range headers {
		text += h + "\r\n"
	}
	return text + "\r\n"
}

func (p *peer) json(status int, body string) bool {
	return p.say(head(status, "Content-Type: application/json", "Content-Length: "+strconv.Itoa(len(body))) + body)
}

func (p *peer) frame(kind byte, payload string) bool {
	return p.frameOf(kind, uint32(len(payload)), payload)
}

// frameOf announces an arbitrary length.
func (p *peer) frameOf(kind byte, length uint32, payload string) bool {
	b := binary.BigEndian.AppendUint32([]byte{kind}, length)
	_, err := p.Write(append(b, payload...))
	return err == nil
}

// forever repeats a text until the host hangs up.
func (p *peer) forever(text string) bool {
	for p.say(text) {
	}
	return false
}

// slowly repeats a text with pauses.
func (p *peer) slowly(text string, pause time.Duration) bool {
	for p.say(text) {
		time.Sleep(pause)
	}
	return false
}

// silently waits until the host gives up.
func (p *peer) silently() bool {
	var b [4096]byte
	for {
		if _, err := p.Read(b[:]); err != nil {
			return false
		}
	}
}
