package wire

import (
	"errors"
	"syscall"

	"skerry/keeper/internal/disk"
	"skerry/keeper/internal/linux"
)

// Rest is what follows a frame's beginning: bytes of a file, which may be mapped.
type Rest struct {
	FD   int
	Base uintptr // where its first byte is mapped; 0: it is not
	At   int64
	Size int64
}

// WriteFrames sends frames as they are, the last of which goes on elsewhere. If that turns out to be shorter, zeros take its
// place: the frame's length has been said.
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

// sendMapped sends all of it; where the file is shorter than its mapping, EFAULT. It returns what is left of the head.
func sendMapped(raw syscall.RawConn, head []byte, rest *Rest) ([]byte, error) {
	for rest.Size > 0 {
		n := 0
		var err error
		waitErr := raw.Write(func(socket uintptr) bool {
			err = disk.Do(func() (err error) {
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

// sendFile waits until the socket takes some of a file.
func sendFile(raw syscall.RawConn, rest Rest) (n int, err error) {
	waitErr := raw.Write(func(socket uintptr) bool {
		for n, err = 0, syscall.EINTR; err == syscall.EINTR; {
			err = disk.Do(func() (err error) {
				n, err = syscall.Sendfile(int(socket), rest.FD, &rest.At, int(rest.Size))
				return err
			})
		}
		return err != syscall.EAGAIN
	})
	return max(n, 0), errors.Join(waitErr, err)
}
