package httpwire

import (
	"fmt"
	"io"
	"strconv"

	"skerry/keeper/internal/bufpool"
)

const (
	chunkSize = 32 << 10
	sizeLine  = 10 // eight hexadecimal digits and the line end
)

// Chunks is a response body of unknown length. Closing it ends the body.
type Chunks struct {
	c      *Conn
	buffer []byte
	err    error
}

// Chunked starts a response with a body of unknown length.
func (c *Conn) Chunked(status int) *Chunks {
	w := &Chunks{c: c, buffer: make([]byte, 0, chunkSize)}
	w.err = c.Head(status, "Transfer-Encoding: chunked")
	return w
}

// Write adds to the body.
func (w *Chunks) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 && w.err == nil {
		n := min(len(p), cap(w.buffer)-len(w.buffer))
		w.buffer = append(w.buffer, p[:n]...)
		p = p[n:]
		if len(w.buffer) == cap(w.buffer) {
			_ = w.Flush()
		}
	}
	return total - len(p), w.err
}

// Flush sends the buffered bytes.
func (w *Chunks) Flush() error {
	if len(w.buffer) == 0 || w.err != nil {
		return w.err
	}
	w.err = w.c.WriteChunk(w.buffer)
	w.buffer = w.buffer[:0]
	return w.err
}

// Close sends the buffered bytes and the last chunk.
func (w *Chunks) Close() error {
	_ = w.Flush()
	if w.err == nil {
		w.err = w.c.EndChunks()
	}
	return w.err
}

// EndChunks ends a chunked body.
func (c *Conn) EndChunks() error { return c.write([]byte("0\r\n\r\n"), nil) }

// WriteChunk sends one chunk of a body whose head announced chunked encoding.
func (c *Conn) WriteChunk(data []byte) error {
	chunk := append(strconv.AppendInt(make([]byte, 0, len(data)+16), int64(len(data)), 16), "\r\n"...)
	return c.write(append(append(chunk, data...), "\r\n"...), nil)
}

// SendFile sends a part of a file as chunks. It reads and writes each chunk in one call.
func (c *Conn) SendFile(file io.ReaderAt, start, end int64) error {
	err := bufpool.With(func(buffer []byte) error {
		for start < end {
			room := min(int64(len(buffer)-sizeLine-2), end-start)
			n, err := file.ReadAt(buffer[sizeLine:sizeLine+room], start)
			if n == 0 {
				if err == io.EOF {
					break
				}
				return err
			}
			copy(buffer, fmt.Sprintf("%08x\r\n", n))
			copy(buffer[sizeLine+n:], "\r\n")
			if err := c.write(buffer[:sizeLine+n+2], nil); err != nil {
				return err
			}
			start += int64(n)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.write([]byte("0\r\n\r\n"), nil)
}
