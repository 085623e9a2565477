package launchproto

import (
	"encoding/binary"
	"io"
	"os"
	"syscall"
)

const maxFDs = 4 // stdin, stdout, stderr and optionally a channel

// ReceiveFrom reads one request with its fds from a socket in the poller, within the socket's deadline. No thread waits
// meanwhile: a connection must not cost the keeper a thread.
func ReceiveFrom(conn *os.File, limit uint32) (*Request, []int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var head [4]byte
	control := make([]byte, syscall.CmsgSpace(maxFDs*4))
	n, cn := 0, 0
	var readErr error
	err = raw.Read(func(fd uintptr) bool {
		n, cn, _, _, readErr = syscall.Recvmsg(int(fd), head[:], control, syscall.MSG_CMSG_CLOEXEC)
		return readErr != syscall.EAGAIN && readErr != syscall.EINTR
	})
	if err != nil || readErr != nil || n == 0 {
		return nil, nil, syscall.EPROTO
	}
	fds := receivedFDs(control[:cn])
	request, err := finish(conn, head, n, limit)
	if err != nil {
		CloseAll(fds)
		return nil, nil, err
	}
	return request, fds, nil
}

func finish(conn io.Reader, head [4]byte, got int, limit uint32) (*Request, error) {
	if _, err := io.ReadFull(conn, head[got:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > limit {
		return nil, errShort
	}
	body, err := io.ReadAll(io.LimitReader(conn, int64(size)))
	if err != nil || len(body) < int(size) {
		return nil, errShort
	}
	return Decode(body)
}

// Receive reads one request with its fds from a blocking socket. EAGAIN: none came within the socket's timeout.
func Receive(fd int, limit uint32) (*Request, []int, error) {
	var head [4]byte
	control := make([]byte, syscall.CmsgSpace(maxFDs*4))
	const flags = syscall.MSG_CMSG_CLOEXEC | syscall.MSG_WAITALL
	n, cn, _, _, err := syscall.Recvmsg(fd, head[:], control, flags)
	for err == syscall.EINTR {
		n, cn, _, _, err = syscall.Recvmsg(fd, head[:], control, flags)
	}
	if err == syscall.EAGAIN {
		return nil, nil, err
	}
	var fds []int
	if err == nil {
		fds = receivedFDs(control[:cn])
	}
	size := binary.BigEndian.Uint32(head[:])
	if err != nil || n != len(head) || size > limit {
		CloseAll(fds)
		return nil, nil, syscall.EPROTO
	}
	body := make([]byte, size)
	if err := readFull(fd, body); err != nil {
		CloseAll(fds)
		return nil, nil, err
	}
	request, err := Decode(body)
	if err != nil {
		CloseAll(fds) // closing them twice could close another file's fd
		return nil, nil, err
	}
	return request, fds, nil
}

// receivedFDs extracts the fds from any number of control messages.
func receivedFDs(control []byte) (fds []int) {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for i := range messages {
		if got, err := syscall.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

func readFull(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := syscall.Read(fd, b)
		if err == syscall.EINTR || err == syscall.EAGAIN {
			continue
		}
		if err != nil || n == 0 {
			return syscall.EPROTO
		}
		b = b[n:]
	}
	return nil
}

// CloseAll closes fds that came with a request.
func CloseAll(fds []int) {
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
}
