package main

import (
	"io"
	"net/http"
	"sync"
	"syscall"
)

const attempts = 64

// linger sends sockets along with the answer. A reader of the bytes that does not want the sockets closes them, and
// closing one with unsent data and SO_LINGER blocks the reader's own thread for that time. The last process to close it
// blocks: it is a race, so the test repeats it many times.
func linger(p *peer, q *http.Request) bool {
	if q.URL.Path != "/v1/processes" {
		return honest(p, q)
	}
	_, _ = io.Copy(io.Discard, q.Body)
	p.say(upgrade)
	p.frame(started, `{"pid": 7}`)
	var sent sync.WaitGroup
	for range attempts {
		fd := stuck()
		sent.Add(1)
		go func() {
			_ = syscall.Sendmsg(p.fd, []byte("\x01\x00\x00\x00\x01x"), syscall.UnixRights(fd), nil, syscall.MSG_NOSIGNAL)
			sent.Done()
			_ = syscall.Close(fd)
		}()
	}
	sent.Wait()
	p.frame(exit, goodExit)
	return false
}

// stuck returns a connected TCP socket full of data, with an hour of SO_LINGER and a peer that does not read.
func stuck() int {
	listener, _ := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	_ = syscall.SetsockoptInt(listener, syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096)
	_ = syscall.Bind(listener, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	_ = syscall.Listen(listener, 1)
	where, _ := syscall.Getsockname(listener)
	fd, _ := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, 4096)
	_ = syscall.Connect(fd, where)
	_ = syscall.SetNonblock(fd, true)
	for {
		if _, err := syscall.Write(fd, make([]byte, 4096)); err != nil {
			break
		}
	}
	_ = syscall.SetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1, Linger: 3600})
	return fd
}
