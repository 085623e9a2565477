package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"

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
	Channel  byte = 7 // what a program wrote to its channel
	Turned   byte = 8
	Shut     byte = 9 // the program has closed its channel
	Stdin    byte = 10
	StdinEOF byte = 11
	Signal   byte = 12
	Resize   byte = 13
	Over     byte = 14 // of a turn
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
func PutHead(buffer []byte, kind byte) { PutHeadOf(buffer, kind, len(buffer)-FrameHead) }

// PutHeadOf writes the head of a frame whose payload is elsewhere.
func PutHeadOf(buffer []byte, kind byte, size int) {
	buffer[0] = kind
	binary.BigEndian.PutUint32(buffer[1:], uint32(size))
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
