package wire

import (
	"bufio"
	"encoding/json"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// bodyIdle is how long a peer may leave a request half-sent.
const bodyIdle = 60 * time.Second

// sendBuffer is asked for; the kernel gives what its own bound allows. A large frame fits, and its reader is woken once.
const sendBuffer = 1 << 20

// Conn is one accepted connection.
type Conn struct {
	File   *os.File
	r      *bufio.Reader
	mu     sync.Mutex  // a frame is written whole
	ended  atomic.Bool // no further request
	framed atomic.Bool // between an upgrade and the last frame
	busy   bool        // in the middle of a request: its bytes have to keep coming
}

// NewConn takes over an accepted, non-blocking socket.
func NewConn(fd int) *Conn {
	_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, sendBuffer)
	f := os.NewFile(uintptr(fd), "connection")
	c := &Conn{File: f}
	c.r = bufio.NewReaderSize(patient{c}, maxHead)
	return c
}

// patient reads the socket, for ever between requests, and not for long within one.
type patient struct{ c *Conn }

func (p patient) Read(b []byte) (int, error) {
	if p.c.busy {
		_ = p.c.File.SetReadDeadline(time.Now().Add(bodyIdle))
	}
	return p.c.File.Read(b)
}

func (c *Conn) setBusy(busy bool) {
	c.busy = busy
	if !busy {
		_ = c.File.SetReadDeadline(time.Time{})
	}
}

// Left returns a channel that is closed when the host hangs up, or speaks again. It is for an answer without end: this
// request is the connection's last.
func (c *Conn) Left() <-chan struct{} {
	c.End()
	c.setBusy(false)
	left := make(chan struct{})
	go func() {
		_, _ = c.r.Peek(1)
		close(left)
	}()
	return left
}

// endGrace is how long the end of a body may still be on its way when its reader is gone.
const endGrace = 200 * time.Millisecond

// Unhurried lets the rest of this request's body take any time, but not much longer than until the channel is closed: a
// program that leaves once it has read all must not make its writer fail. nil: any time at all. The caller calls what it
// returns when the body has been read.
func (c *Conn) Unhurried(until <-chan struct{}) func() {
	c.setBusy(false)
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		select {
		case <-until:
			_ = c.File.SetReadDeadline(time.Now().Add(endGrace))
		case <-done:
		}
		close(over)
	}()
	return func() {
		close(done)
		<-over
		c.setBusy(true)
	}
}

// Handler answers one request.
type Handler func(*Conn, *Request)

// Serve answers requests until the peer leaves or the connection is spent.
func (c *Conn) Serve(h Handler) {
	defer c.File.Close()
	for !c.ended.Load() {
		if _, err := c.r.Peek(1); err != nil {
			return
		}
		c.setBusy(true)
		q, err := readRequest(c.r)
		if err != nil {
			c.Fail(400, "bad_request", err.Error())
			return
		}
		h(c, q)
		if c.ended.Load() || !q.drain() {
			return
		}
		c.setBusy(false)
	}
}

var reasons = map[int]string{
	101: "Switching Protocols", 200: "OK", 206: "Partial Content", 400: "Bad Request", 403: "Forbidden", 404: "Not Found",
	405: "Method Not Allowed", 409: "Conflict", 416: "Range Not Satisfiable", 429: "Too Many Requests",
	500: "Internal Server Error", 507: "Insufficient Storage",
}

// Head writes a status line and headers given as "Name: value".
func (c *Conn) Head(status int, headers ...string) error { return c.write(head(status, headers), nil) }

func head(status int, headers []string) []byte {
	b := append(make([]byte, 0, 256), "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(append(append(b, ' '), reasons[status]...), "\r\n"...)
	for _, h := range headers {
		b = append(append(b, h...), "\r\n"...)
	}
	return append(b, "\r\n"...)
}

func (c *Conn) write(first, second []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(second) > 0 {
		first = append(first, second...)
	}
	_, err := c.File.Write(first)
	if err != nil {
		c.ended.Store(true)
	}
	return err
}

// JSON answers with a value.
func (c *Conn) JSON(status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		status, body = 500, []byte(`{"error":{"code":"internal","message":"can't encode the answer"}}`)
	}
	headers := []string{"Content-Type: application/json", "Content-Length: " + strconv.Itoa(len(body))}
	_ = c.write(head(status, headers), body)
}

// Failure is the shape of every error.
type Failure struct {
	Code    string  `json:"code"`
	Message string  `json:"message"`
	Errno   int     `json:"errno,omitempty"`
	Path    *string `json:"path,omitempty"`
	Details any     `json:"details,omitempty"`
}

// Fail answers with an error.
func (c *Conn) Fail(status int, code, message string) {
	c.FailWith(status, Failure{Code: code, Message: message})
}

// FailWith answers with a whole Failure.
func (c *Conn) FailWith(status int, f Failure) {
	c.JSON(status, map[string]Failure{"error": f})
}

// End makes this the connection's last request.
func (c *Conn) End() { c.ended.Store(true) }
