package ports

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
)

const (
	maxPath   = 2048
	maxStatus = 1024 // maximum length of the status line
)

var (
	errNoHTTP   = errors.New("the response is not HTTP")
	errNoAnswer = errors.New("no response to an HTTP request")
	errClosed   = errors.New("the connection was closed without a response")
)

// ValidPath reports whether a path can be requested: printable ASCII without blanks.
func ValidPath(path string) bool {
	return strings.HasPrefix(path, "/") && len(path) <= maxPath &&
		strings.IndexFunc(path, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}

// request requests a path and returns the status of the response.
func request(conn *os.File, path string) (int, error) {
	_, err := conn.WriteString("GET " + path + " HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nConnection: close\r\n\r\n")
	if err != nil {
		return 0, answerError(err)
	}
	line := make([]byte, 0, maxStatus)
	for bytes.IndexByte(line, '\n') < 0 {
		n, err := conn.Read(line[len(line):cap(line)])
		line = line[:len(line)+n]
		if err != nil {
			return 0, answerError(err)
		}
		if len(line) == cap(line) {
			break
		}
	}
	return status(line)
}

// status parses "HTTP/1.1 200 …".
func status(line []byte) (int, error) {
	code := 0
	if len(line) < 13 || !bytes.HasPrefix(line, []byte("HTTP/1.")) || line[8] != ' ' || line[12] > ' ' {
		return 0, errNoHTTP
	}
	for _, digit := range line[9:12] {
		if digit < '0' || digit > '9' {
			return 0, errNoHTTP
		}
		code = 10*code + int(digit-'0')
	}
	if code < 100 || code > 599 {
		return 0, errNoHTTP
	}
	return code, nil
}

func answerError(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errNoAnswer
	case errors.Is(err, io.EOF):
		return errClosed
	}
	return errClosed
}
