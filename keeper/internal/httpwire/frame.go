package httpwire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"

	"skerry/keeper/internal/linux"
)

// Frame types: 1 to 9 come from the keeper, 10 and up from the host.
const (
	Stdout        byte = 1
	Stderr        byte = 2
	Exit          byte = 3
	Started       byte = 4
	Missing       byte = 5
	Pause         byte = 6
	Channel       byte = 7 // bytes that a program wrote to its channel
	ExchangeDone  byte = 8
	ChannelClosed byte = 9 // the program has closed its channel
	Stdin         byte = 10
	StdinEOF      byte = 11
	Signal        byte = 12
	Resize        byte = 13
	EndExchange   byte = 14
)

const (
	// FrameHeader is a type byte and a big-endian length.
	FrameHeader = 5
	maxFrame    = 1 << 20
	// firstOfMethod separates requests from frames: a request starts with a letter, and no frame type is a letter.
	firstOfMethod = 'A'
)

var errFrame = errors.New("frame too long")

// ErrDowngraded is returned by ReadFrame after the last frame has been sent: the next bytes are a request.
var ErrDowngraded = errors.New("the connection no longer carries frames")

// Upgrade sends 101 and the first frame in one write. From then on the connection carries frames.
func (c *Conn) Upgrade(kind byte, value any) error {
	c.setBusy(false)
	c.framed.Store(true)
	first, err := jsonFrame(kind, value)
	if err != nil {
		return err
	}
	return c.write(head(101, []string{"Connection: Upgrade", "Upgrade: skerry-frames"}), first)
}

// Downgrade sends the last frame; after it the connection speaks HTTP again. A host that has sent frames cannot know
// which of them arrived before this one, so it closes the connection instead. The keeper reads and drops its late
// frames, because closing a socket with unread bytes resets the peer, which might then miss the last frame.
func (c *Conn) Downgrade(kind byte, value any) {
	frame, err := jsonFrame(kind, value)
	c.framed.Store(false)
	if err != nil || c.write(frame, nil) != nil {
		c.End()
	}
}

// WriteFrame sends a frame. The first FrameHeader bytes of the buffer are reserved for the header.
func (c *Conn) WriteFrame(kind byte, buffer []byte) error {
	PutHeader(buffer, kind)
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

func jsonFrame(kind byte, value any) ([]byte, error) {
	body, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	frame := append(make([]byte, FrameHeader, FrameHeader+len(body)), body...)
	PutHeader(frame, kind)
	return frame, nil
}

// PutHeader fills in the header of a frame, for which the first FrameHeader bytes of the buffer are reserved.
func PutHeader(buffer []byte, kind byte) { PutHeaderSize(buffer, kind, len(buffer)-FrameHeader) }

// PutHeaderSize writes the header of a frame whose payload is stored elsewhere.
func PutHeaderSize(buffer []byte, kind byte, size int) {
	buffer[0] = kind
	binary.BigEndian.PutUint32(buffer[1:], uint32(size))
}

// ReadFrame reads the next frame from the host into a new buffer.
func (c *Conn) ReadFrame() (byte, []byte, error) {
	first, err := c.r.Peek(1)
	if !c.framed.Load() && (err != nil || first[0] >= firstOfMethod) {
		return 0, nil, ErrDowngraded
	}
	if err != nil {
		return 0, nil, err
	}
	var h [FrameHeader]byte
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

// HungUp reports whether the host has closed the connection, even while unread bytes remain.
func (c *Conn) HungUp() bool {
	hungUp := true
	if raw, err := c.File.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { hungUp = linux.HungUp(int(fd)) })
	}
	return hungUp
}
