package httpwire

import (
	"errors"
	"syscall"

	"skerry/keeper/internal/iolimit"
	"skerry/keeper/internal/linux"
)

// Rest is the part of the last frame that lies in a file, which may be mapped.
type Rest struct {
	FD   int
	Base uintptr // address of its first byte in the mapping; 0: not mapped
	At   int64
	Size int64
}

// WriteFrames sends encoded frames, the last of which may continue in a file. If the file turns out to be shorter,
// zeros fill the gap, because the frame's header has announced its length.
func (c *Conn) WriteFrames(frames []byte, rest Rest) error {
	if rest.Size == 0 {
		return c.write(frames, nil)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	raw, err := c.File.SyscallConn()
	if err == nil && rest.Base != 0 {
		if frames, err = sendMapped(raw, frames, &rest); err == syscall.EFAULT {
			err = nil
		}
	}
	if err == nil && len(frames) > 0 {
		_, err = c.File.Write(frames)
	}
	for err == nil && rest.Size > 0 {
		n := 0
		if n, err = sendFile(raw, rest); err == nil && n == 0 {
			n, err = c.File.Write(make([]byte, min(rest.Size, chunkSize)))
		}
		rest.At, rest.Size = rest.At+int64(n), rest.Size-int64(n)
	}
	if err != nil {
		c.ended.Store(true)
	}
	return err
}

// sendMapped sends from a mapping and returns the unsent part of the head. EFAULT: the file is shorter than its
// mapping.
func sendMapped(raw syscall.RawConn, head []byte, rest *Rest) ([]byte, error) {
	for rest.Size > 0 {
		n := 0
		var err error
		waitErr := raw.Write(func(socket uintptr) bool {
			err = iolimit.Do(func() (err error) {
				n, err = linux.WriteFrom(int(socket), head, rest.Base, rest.Size)
				return err
			})
			return err != syscall.EAGAIN
		})
		if waitErr != nil {
			err = waitErr
		}
		if err != nil {
			return head, err
		}
		cut := min(n, len(head))
		head, n = head[cut:], n-cut
		rest.Base, rest.At, rest.Size = rest.Base+uintptr(n), rest.At+int64(n), rest.Size-int64(n)
	}
	return head, nil
}

// sendFile waits until the socket accepts some bytes of the file.
func sendFile(raw syscall.RawConn, rest Rest) (n int, err error) {
	waitErr := raw.Write(func(socket uintptr) bool {
		for n, err = 0, syscall.EINTR; err == syscall.EINTR; {
			err = iolimit.Do(func() (err error) {
				n, err = syscall.Sendfile(int(socket), rest.FD, &rest.At, int(rest.Size))
				return err
			})
		}
		return err != syscall.EAGAIN
	})
	return max(n, 0), errors.Join(waitErr, err)
}
