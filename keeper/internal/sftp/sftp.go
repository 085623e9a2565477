// Package sftp is an SFTP server on stdin and stdout: version 3 with the extensions of OpenSSH's clients. An SSH
// connection to a sandbox runs it as the user of the login, so it has the rights of that user's programs and no others.
// Its only client is the other end of stdin; it still checks every length and closes on a malformed packet.
package sftp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strconv"
	"syscall"
)

const (
	maxPacket  = 256 << 10 // as OpenSSH's server, and the most that its clients send
	maxData    = maxPacket - 1024
	maxHandles = 512
	nameBytes  = 64 << 10 // of entries in one reply to READDIR
)

var (
	errHandle  = errors.New("no such handle")
	errHandles = errors.New("too many open handles")
	errAttr    = errors.New("a file cannot have this size")
	errPath    = errors.New("a path cannot contain a NUL byte")
)

// server is one session.
type server struct {
	in      *bufio.Reader
	out     *bufio.Writer
	handles map[string]*handle
	next    uint64
	buffer  []byte // of the current packet
	data    []byte // of a reply to READ
}

// handle is an open file or directory.
type handle struct {
	file   *os.File
	dir    bool
	append bool
	names  []os.DirEntry
	listed bool
}

// Run serves stdin and stdout to the end of stdin. It returns the exit code.
func Run() int { return serve(os.Stdin, os.Stdout) }

func serve(in io.Reader, out io.Writer) int {
	s := &server{
		in: bufio.NewReaderSize(in, maxPacket), out: bufio.NewWriterSize(out, maxPacket), handles: map[string]*handle{},
		buffer: make([]byte, maxPacket), data: make([]byte, 0, maxPacket+64),
	}
	defer s.closeAll()
	for {
		packet, err := s.read()
		if err == nil {
			err = s.answer(packet)
		}
		if err == io.EOF {
			return 0
		}
		if err != nil {
			_ = s.out.Flush()
			_, _ = io.WriteString(os.Stderr, "sftp: "+err.Error()+"\n")
			return 1
		}
	}
}

// read returns the next packet. Replies are sent before it waits: the client may be waiting for them.
func (s *server) read() ([]byte, error) {
	if s.in.Buffered() < 4 {
		if err := s.out.Flush(); err != nil {
			return nil, err
		}
	}
	head := s.buffer[:4]
	if _, err := io.ReadFull(s.in, head); err != nil {
		if err == io.ErrUnexpectedEOF {
			err = errMessage
		}
		return nil, err
	}
	size := binary.BigEndian.Uint32(head)
	if size < 1 || size > maxPacket {
		return nil, errMessage
	}
	if s.in.Buffered() < int(size) {
		if err := s.out.Flush(); err != nil {
			return nil, err
		}
	}
	if _, err := io.ReadFull(s.in, s.buffer[:size]); err != nil {
		return nil, errMessage
	}
	return s.buffer[:size], nil
}

func (s *server) answer(packet []byte) error {
	in := &input{data: packet[1:]}
	if packet[0] == msgInit {
		return s.version(in)
	}
	id := in.uint32()
	if in.bad {
		return errMessage
	}
	answer, err := s.handle(packet[0], id, in)
	switch {
	case in.bad:
		answer = status(id, statusBadMessage, errMessage.Error())
	case err != nil:
		answer = failure(id, err)
	case answer == nil:
		answer = status(id, statusOK, "")
	}
	_, err = s.out.Write(answer.finish())
	return err
}

func (s *server) version(in *input) error {
	if in.uint32() < 3 || in.bad {
		return errMessage
	}
	answer := output{0, 0, 0, 0, msgVersion}.uint32(3)
	for _, extension := range [][2]string{
		{"posix-rename@openssh.com", "1"}, {"hardlink@openssh.com", "1"}, {"fsync@openssh.com", "1"},
		{"statvfs@openssh.com", "2"}, {"fstatvfs@openssh.com", "2"}, {"lsetstat@openssh.com", "1"},
		{"limits@openssh.com", "1"}, {"expand-path@openssh.com", "1"},
	} {
		answer = answer.text(extension[0]).text(extension[1])
	}
	_, err := s.out.Write(answer.finish())
	return err
}

// handle executes one request. A nil answer without an error is the status OK.
func (s *server) handle(kind byte, id uint32, in *input) (output, error) {
	switch kind {
	case msgOpen:
		return s.open(id, in)
	case msgOpendir:
		return s.opendir(id, in)
	case msgClose:
		return nil, s.close(in.text(), in)
	case msgRead:
		return s.readFile(id, in)
	case msgWrite:
		return nil, s.write(in)
	case msgReaddir:
		return s.readdir(id, in)
	case msgFstat:
		return s.fstat(id, in)
	case msgFsetstat:
		return nil, s.fsetstat(in)
	case msgExtended:
		return s.extended(id, in.text(), in)
	}
	return paths(kind, id, in)
}

func (s *server) add(h *handle, id uint32) (output, error) {
	if len(s.handles) >= maxHandles {
		_ = h.file.Close()
		return nil, errHandles
	}
	s.next++
	name := strconv.FormatUint(s.next, 10)
	s.handles[name] = h
	return reply(msgHandle, id).text(name), nil
}

// find returns an open handle of the requested kind.
func (s *server) find(name string, dir bool) (*handle, error) {
	if h := s.handles[name]; h != nil && h.dir == dir {
		return h, nil
	}
	return nil, errHandle
}

func (s *server) close(name string, in *input) error {
	h := s.handles[name]
	if in.bad || h == nil {
		return errHandle
	}
	delete(s.handles, name)
	return h.file.Close()
}

func (s *server) closeAll() {
	for _, h := range s.handles {
		_ = h.file.Close()
	}
}

func status(id, code uint32, message string) output {
	return reply(msgStatus, id).uint32(code).text(message).text("")
}

// failure returns the status of an error.
func failure(id uint32, err error) output {
	code := uint32(statusFailure)
	var errno syscall.Errno
	switch {
	case errors.Is(err, io.EOF):
		return status(id, statusEOF, "end of file")
	case errors.Is(err, errUnsupported):
		code = statusUnsupported
	case !errors.As(err, &errno):
	case errno == syscall.ENOENT || errno == syscall.ENOTDIR || errno == syscall.ELOOP:
		code = statusNoFile
	case errno == syscall.EPERM || errno == syscall.EACCES || errno == syscall.EROFS:
		code = statusPermission
	}
	if errno != 0 {
		return status(id, code, errno.Error())
	}
	return status(id, code, err.Error())
}
