// Package httpwire implements the part of HTTP/1.1 that the keeper needs, and the frames that follow an upgrade. It
// replaces net/http, which would be a third of the binary and half of the memory of a process that every sandbox
// carries.
//
// A connection serves any number of requests. An idle connection has no deadline; within a request the next bytes must
// arrive within a minute, except where a handler allows a slow body. Handlers never hold a thread while they wait:
// sockets are in Go's poller.
package httpwire

import (
	"bufio"
	"errors"
	"io"
	"net/url"
	"strconv"
	"strings"
)

const (
	maxHead = 32 << 10 // two paths of 4 KiB with every byte escaped
	maxJSON = 4 << 20
)

// Errors of an unreadable request. They end the connection.
var (
	ErrHead = errors.New("malformed request")
	ErrBody = errors.New("malformed body")
	ErrSize = errors.New("body too large")
)

// Request is one HTTP request. Header names are in lower case.
type Request struct {
	Method string
	Path   string
	Query  url.Values
	Header map[string]string
	Body   io.Reader
	length int64 // -1: chunked
}

// readRequest reads the head of a request. io.EOF before the first byte is an ordinary end of the connection.
func readRequest(r *bufio.Reader) (*Request, error) {
	left := maxHead
	line, err := readLine(r, &left)
	if err != nil {
		return nil, err
	}
	parts := strings.Split(line, " ")
	if len(parts) != 3 || parts[2] != "HTTP/1.1" {
		return nil, ErrHead
	}
	q := &Request{Method: parts[0], Header: map[string]string{}}
	if err := q.target(parts[1]); err != nil {
		return nil, err
	}
	for {
		line, err := readLine(r, &left)
		if err != nil {
			return nil, ErrHead
		}
		if line == "" {
			break
		}
		name, value, ok := strings.Cut(line, ":")
		name = strings.ToLower(name)
		if _, twice := q.Header[name]; !ok || twice || name == "" || strings.ContainsAny(name, " \t") {
			return nil, ErrHead
		}
		q.Header[name] = strings.TrimSpace(value)
	}
	return q, q.body(r)
}

func (q *Request) target(target string) error {
	path, query, _ := strings.Cut(target, "?")
	if !strings.HasPrefix(path, "/") {
		return ErrHead
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return ErrHead
	}
	q.Path, q.Query = path, values
	return nil
}

// body selects the reader for the body. It rejects a request with both lengths, as smuggling attempts have them.
func (q *Request) body(r *bufio.Reader) error {
	coding, chunked := q.Header["transfer-encoding"]
	length, sized := q.Header["content-length"]
	switch {
	case chunked && (sized || coding != "chunked"):
		return ErrHead
	case chunked:
		q.length, q.Body = -1, &chunkedReader{r: r}
	case sized:
		n, err := strconv.ParseUint(length, 10, 62)
		if err != nil {
			return ErrHead
		}
		q.length, q.Body = int64(n), &exactReader{r: r, left: int64(n)}
	default:
		q.Body = &exactReader{r: r}
	}
	return nil
}

// Length returns the length of the body, or -1 if it is not announced.
func (q *Request) Length() int64 { return q.length }

// ReadAll returns a JSON body.
func (q *Request) ReadAll() ([]byte, error) { return q.ReadUpTo(maxJSON) }

// ReadUpTo returns a body of at most `limit` bytes.
func (q *Request) ReadUpTo(limit int64) ([]byte, error) {
	if q.length > limit {
		return nil, ErrSize
	}
	b, err := io.ReadAll(io.LimitReader(q.Body, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = ErrSize
	}
	return b, err
}

// drain reads the rest of the body, so that a peer that is still sending can read the response.
func (q *Request) drain() bool {
	_, err := io.Copy(io.Discard, q.Body)
	return err == nil
}

func readLine(r *bufio.Reader, left *int) (string, error) {
	line, err := r.ReadSlice('\n')
	if *left -= len(line); err != nil || *left < 0 {
		if err == io.EOF && len(line) == 0 {
			return "", io.EOF
		}
		return "", ErrHead
	}
	return strings.TrimSuffix(string(line[:len(line)-1]), "\r"), nil
}
