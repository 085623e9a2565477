package httpwire

import (
	"bufio"
	"io"
	"strconv"
	"strings"
)

// exactReader returns io.EOF after the announced number of bytes, and an error if the connection ends before.
type exactReader struct {
	r    *bufio.Reader
	left int64
}

func (e *exactReader) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

type chunkedReader struct {
	r    *bufio.Reader
	left int64
	any  bool
	done bool
}

func (c *chunkedReader) Read(p []byte) (int, error) {
	if c.done {
		return 0, io.EOF
	}
	if c.left == 0 {
		if err := c.next(); err != nil || c.done {
			return 0, orEOF(err)
		}
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	if err != nil {
		return n, ErrBody
	}
	return n, nil
}

// next reads the size line of a chunk, and before it the line end of the previous chunk.
func (c *chunkedReader) next() error {
	budget := 64
	if c.any {
		if line, err := readLine(c.r, &budget); err != nil || line != "" {
			return ErrBody
		}
	}
	line, err := readLine(c.r, &budget)
	size, perr := strconv.ParseUint(strings.TrimSpace(line), 16, 40)
	if err != nil || perr != nil {
		return ErrBody
	}
	c.left, c.any = int64(size), true
	if size == 0 {
		if line, err := readLine(c.r, &budget); err != nil || line != "" {
			return ErrBody
		}
		c.done = true
	}
	return nil
}

func orEOF(err error) error {
	if err == nil {
		return io.EOF
	}
	return err
}
