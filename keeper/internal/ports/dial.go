package ports

import (
	"errors"
	"net/netip"
	"os"
	"syscall"
	"time"
)

type address = netip.Addr

var (
	localhost4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	localhost6 = netip.IPv6Loopback()

	errRefused = errors.New("connection refused")
	errSilent  = errors.New("connection timed out")
)

// dial connects without blocking a thread.
func dial(to address, port int, end time.Time) (*os.File, error) {
	family, sockaddr := name(to, port)
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, refused(err)
	}
	err = syscall.Connect(fd, sockaddr)
	if err != nil && err != syscall.EINPROGRESS && err != syscall.EINTR {
		_ = syscall.Close(fd)
		return nil, refused(err)
	}
	conn := os.NewFile(uintptr(fd), "port") // after the connect, because an unconnected socket looks ready
	if err = connected(conn, end); err != nil {
		_ = conn.Close()
		return nil, refused(err)
	}
	return conn, nil
}

func name(to address, port int) (int, syscall.Sockaddr) {
	if to.Is4() {
		return syscall.AF_INET, &syscall.SockaddrInet4{Port: port, Addr: to.As4()}
	}
	return syscall.AF_INET6, &syscall.SockaddrInet6{Port: port, Addr: to.As16()}
}

// connected waits for a connect in progress.
func connected(conn *os.File, end time.Time) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	_ = conn.SetWriteDeadline(end)
	var result error
	err = raw.Write(func(fd uintptr) bool {
		code, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ERROR)
		if err != nil || code != 0 {
			result = errors.Join(err, syscall.Errno(code))
			return true
		}
		_, err = syscall.Getpeername(int(fd))
		return err == nil
	})
	if err != nil {
		return err
	}
	return result
}

// refused distinguishes three cases: no listener, no answer, and a failure of the keeper.
func refused(err error) error {
	var errno syscall.Errno
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errSilent
	case !errors.As(err, &errno):
		return err
	}
	switch errno {
	case syscall.ECONNREFUSED, syscall.EADDRNOTAVAIL, syscall.EAFNOSUPPORT, syscall.ENETUNREACH, syscall.EHOSTUNREACH,
		syscall.EINVAL, syscall.ENETDOWN, syscall.ECONNRESET:
		return errRefused
	case syscall.ETIMEDOUT:
		return errSilent
	}
	return errno
}
