package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"syscall"

	"skerry/keeper/internal/disk"
	"skerry/keeper/internal/linux"
)

// Frame types. 1 to 9 come from the keeper, 10 and up from the host.
const (
	Stdout   byte = 1
	Stderr   byte = 2
	Exit     byte = 3
	Started  byte = 4
	Missing  byte = 5
	Pause    byte = 6
	Stdin    byte = 10
	StdinEOF byte = 11
	Signal   byte = 12
	Resize   byte = 13
)

const (
	// FrameHead is a type byte and a big-endian length.
	FrameHead = 5
	maxFrame  = 1 << 20
	// firstOfMethod: a request begins with a letter, and no frame's type is one.
	firstOfMethod = 'A'
)

var errFrame = errors.New("frame too long")

// ErrDowngraded is what ReadFrame says once the exit frame has been sent: what comes now is a request again.
var ErrDowngraded = errors.New("no longer frames")

// Upgrade answers 101 and the first frame in one write; from now on the connection speaks frames.
func (c *Conn) Upgrade(kind byte, value any) error {
	c.setBusy(false)
	c.framed.Store(true)
	first, err := jsonFrame(kind, value)
	if err != nil {
		return err
	}
	return c.write(head(101, []string{"Connection: Upgrade", "Upgrade: skerry-frames"}), first)
}

// Downgrade sends the last frame; after it the connection speaks HTTP again. A host that has sent frames meanwhile can't
// know which of them still were frames: it closes the connection instead, and what it sent until then is read and thrown
// away. (Closed with bytes unread, a socket resets its peer, which might then never see the last frame.)
func (c *Conn) Downgrade(kind byte, value any) {
	frame, err := jsonFrame(kind, value)
	c.framed.Store(false)
	if err != nil || c.write(frame, nil) != nil {
		c.End()
	}
}

// WriteFrame sends buffer, whose first FrameHead bytes are room for the header.
func (c *Conn) WriteFrame(kind byte, buffer []byte) error {
	PutHead(buffer, kind)
	return c.write(buffer, nil)
}

// WriteJSON sends a value as a frame.
func (c *Conn) WriteJSON(kind byte, value any) error {
	frame, err := jsonFrame(kind, value)
	if err != nil {
		return err
	}
	return c.write(frame, nil)
}

// WriteFrames sends frames as they are, the last of which goes on in a file, for rest bytes from a place on. If the file
// turns out to be shorter, zeros take their place: the frame's length has been said.
func (c *Conn) WriteFrames(frames []byte, fd int, at, rest int64) error {
	if err := c.write(frames, nil); err != nil || rest == 0 {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	raw, err := c.File.SyscallConn()
	for err == nil && rest > 0 {
		n := 0
		if n, err = sendFile(raw, fd, at, rest); err == nil && n == 0 {
			n, err = c.File.Write(make([]byte, min(rest, chunkSize)))
		}
		at, rest = at+int64(n), rest-int64(n)
	}
	if err != nil {
		c.ended.Store(true)
	}
	return err
}

// sendFile waits until the socket takes some of a file.
func sendFile(raw syscall.RawConn, fd int, at, most int64) (n int, err error) {
	waitErr := raw.Write(func(socket uintptr) bool {
		for n, err = 0, syscall.EINTR; err == syscall.EINTR; {
			err = disk.Do(func() (err error) {
				n, err = syscall.Sendfile(int(socket), fd, &at, int(most))
				return err
			})
		}
		return err != syscall.EAGAIN
	})
	return max(n, 0), errors.Join(waitErr, err)
}

func jsonFrame(kind byte, value any) ([]byte, error) {
	body, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	frame := append(make([]byte, FrameHead, FrameHead+len(body)), body...)
	PutHead(frame, kind)
	return frame, nil
}

// PutHead makes a frame of a buffer whose first FrameHead bytes are room for it.
func PutHead(buffer []byte, kind byte) {
	buffer[0] = kind
	binary.BigEndian.PutUint32(buffer[1:], uint32(len(buffer)-FrameHead))
}

// ReadFrame reads the next frame from the host into a fresh buffer.
func (c *Conn) ReadFrame() (byte, []byte, error) {
	first, err := c.r.Peek(1)
	if !c.framed.Load() && (err != nil || first[0] >= firstOfMethod) {
		return 0, nil, ErrDowngraded
	}
	if err != nil {
		return 0, nil, err
	}
	var h [FrameHead]byte
	if _, err := io.ReadFull(c.r, h[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(h[1:])
	if size > maxFrame {
		return 0, nil, errFrame
	}
	if size == 0 {
		return h[0], nil, nil
	}
	body := make([]byte, size)
	_, err = io.ReadFull(c.r, body)
	return h[0], body, err
}

// HungUp says whether the host has closed the connection, also while bytes of it wait to be read.
func (c *Conn) HungUp() bool {
	hungUp := true
	if raw, err := c.File.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { hungUp = linux.HungUp(int(fd)) })
	}
	return hungUp
}
