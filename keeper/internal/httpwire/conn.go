package httpwire

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

// bodyIdle bounds the pause within a request.
const bodyIdle = 60 * time.Second

// sendBuffer is the requested size; the kernel caps it. A large frame fits, so its reader wakes up once.
const sendBuffer = 1 << 20

// Conn is one accepted connection.
type Conn struct {
	File   *os.File
	r      *bufio.Reader
	mu     sync.Mutex  // keeps the bytes of a frame together
	ended  atomic.Bool // this request is the last
	framed atomic.Bool // between an upgrade and the last frame
	busy   bool        // within a request: more bytes must follow soon
}

// NewConn takes over an accepted, non-blocking socket.
func NewConn(fd int) *Conn {
	_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, sendBuffer)
	f := os.NewFile(uintptr(fd), "connection")
	c := &Conn{File: f}
	c.r = bufio.NewReaderSize(deadlineReader{c}, maxHead)
	return c
}

// deadlineReader reads the socket: without a deadline between requests, with one within a request.
type deadlineReader struct{ c *Conn }

func (d deadlineReader) Read(b []byte) (int, error) {
	if d.c.busy {
		_ = d.c.File.SetReadDeadline(time.Now().Add(bodyIdle))
	}
	return d.c.File.Read(b)
}

func (c *Conn) setBusy(busy bool) {
	c.busy = busy
	if !busy {
		_ = c.File.SetReadDeadline(time.Time{})
	}
}

// PeerGone returns a channel that is closed when the host hangs up or sends anything. It serves endless responses: this
// request becomes the last one of the connection.
func (c *Conn) PeerGone() <-chan struct{} {
	c.End()
	c.setBusy(false)
	left := make(chan struct{})
	go func() {
		_, _ = c.r.Peek(1)
		close(left)
	}()
	return left
}

// endGrace is the time that the end of a body may take after its reader has gone.
const endGrace = 200 * time.Millisecond

// AllowSlowBody removes the deadline for the rest of this request's body until the channel is closed, and a short grace
// period after that: a program that exits after reading everything must not make its writer fail. A nil channel means
// no bound at all. The caller must call the returned function after reading the body.
func (c *Conn) AllowSlowBody(until <-chan struct{}) func() {
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

// Serve answers requests until the peer hangs up or a handler ends the connection.
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

// Head writes a status line and headers of the form "Name: value".
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

// JSON sends a value as the response.
func (c *Conn) JSON(status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		status, body = 500, []byte(`{"error":{"code":"internal","message":"cannot encode the response"}}`)
	}
	headers := []string{"Content-Type: application/json", "Content-Length: " + strconv.Itoa(len(body))}
	_ = c.write(head(status, headers), body)
}

// Failure is the form of every error.
type Failure struct {
	Code    string  `json:"code"`
	Message string  `json:"message"`
	Errno   int     `json:"errno,omitempty"`
	Path    *string `json:"path,omitempty"`
	Details any     `json:"details,omitempty"`
}

// Fail responds with an error.
func (c *Conn) Fail(status int, code, message string) {
	c.FailWith(status, Failure{Code: code, Message: message})
}

// FailWith responds with a complete Failure.
func (c *Conn) FailWith(status int, f Failure) {
	c.JSON(status, map[string]Failure{"error": f})
}

// End makes the current request the last one of the connection.
func (c *Conn) End() { c.ended.Store(true) }
