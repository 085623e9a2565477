// Package iolimit bounds the number of threads that block in file system calls. Go creates a thread for each goroutine
// that blocks there and dies when it cannot create one, and this program is PID 1: when the sandbox has used up its
// processes, the threads created at the start must suffice.
package iolimit

import (
	"io"
	"syscall"
)

// slots is the number of concurrent disk operations. The keeper creates more threads than that at its start.
const slots = 4

var free = make(chan struct{}, slots)

// Do runs f, which may block on the disk for a short time and must not call Do.
func Do(f func() error) error {
	free <- struct{}{}
	defer func() { <-free }()
	return f()
}

// ReadAt reads once, at an offset. At the end of the file it returns io.EOF.
func ReadAt(fd int, b []byte, offset int64) (n int, err error) {
	err = Do(func() error {
		for {
			if n, err = syscall.Pread(fd, b, offset); err != syscall.EINTR {
				return err
			}
		}
	})
	if n = max(n, 0); n == 0 && err == nil && len(b) > 0 {
		err = io.EOF
	}
	return n, err
}

// Write writes all of b at the current position of the fd.
func Write(fd int, b []byte) error {
	for len(b) > 0 {
		err := Do(func() error {
			n, err := syscall.Write(fd, b)
			b = b[max(n, 0):]
			return err
		})
		if err != nil && err != syscall.EINTR {
			return err
		}
	}
	return nil
}

// WriteAt writes all of b at an offset.
func WriteAt(fd int, b []byte, offset int64) error {
	for len(b) > 0 {
		err := Do(func() error {
			n, err := syscall.Pwrite(fd, b, offset)
			b, offset = b[max(n, 0):], offset+int64(max(n, 0))
			return err
		})
		if err != nil && err != syscall.EINTR {
			return err
		}
	}
	return nil
}

// File is an open regular file.
type File int

// ReadAt reads once and may return fewer bytes than requested.
func (f File) ReadAt(b []byte, offset int64) (int, error) { return ReadAt(int(f), b, offset) }

// Close closes the file.
func (f File) Close() error { return syscall.Close(int(f)) }
