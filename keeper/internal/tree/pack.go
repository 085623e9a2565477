package tree

import (
	"encoding/json"
	"errors"
	"io"
	"syscall"
	"time"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/files"
	"skerry/keeper/internal/iolimit"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/match/filter"
	"skerry/keeper/internal/tar"
)

const (
	maxDepth  = 1024
	batch     = 512 // entries examined per job
	sayAfter  = 2 * time.Second
	maxLinked = 10_000 // hard-linked files whose first name is kept
)

// Send receives a piece of an archive; its first bytes are reserved for the caller's header. nil: work goes on without
// output.
type Send func(piece []byte) error

// packing is an archive being made.
type packing struct {
	user    *accounts.User
	exclude filter.Set
	levels  []*level
	entry   *linux.Dirent // examined, but the buffer was full
	linked  map[inode]string
	large   *source
	send    Send
	room    int // reserved bytes at the front of the buffer
	buffer  []byte
	sent    time.Time
	sum     Summary
}

// level is an open directory between the root and the current position.
type level struct {
	fd      int
	name    string
	device  uint64
	dirents *linux.Dirents
}

type inode struct{ device, number uint64 }

// Open opens a directory for packing. It refuses directories of /proc: their files have no sizes, and some are the
// keeper's own.
func Open(fs *files.UserFS, path string) (int, error) {
	fd, err := fs.OpenDirectory(path, false)
	if err == nil && linux.OnProc(fd) {
		_ = syscall.Close(fd)
		return -1, syscall.EINVAL
	}
	return fd, err
}

// Pack sends a directory as an archive and closes its fd. It skips and reports entries that cannot be read or have no
// place in an archive. A large file that shrinks after its header was sent cannot be archived correctly; the archive
// then ends with an error.
func Pack(user *accounts.User, root int, exclude filter.Set, buffer []byte, room int, send Send) (*Summary, error) {
	p := &packing{
		user: user, exclude: exclude, linked: map[inode]string{}, send: send, room: room, buffer: buffer[:room],
		sent: time.Now(), sum: Summary{Skipped: []Skipped{}},
	}
	defer p.close()
	p.descend(root, "")
	for len(p.levels) > 0 {
		if err := asuser.Do(user, p.fill); err != nil {
			return &p.sum, err
		}
		if err := p.pass(); err != nil {
			return &p.sum, err
		}
	}
	p.buffer = tar.End(p.buffer)
	if len(p.sum.Skipped) > 0 {
		p.writeSkipped()
	}
	return &p.sum, p.flush()
}

func (p *packing) close() {
	for _, l := range p.levels {
		_ = syscall.Close(l.fd)
	}
	if p.large != nil {
		_ = syscall.Close(p.large.fd)
	}
}

// writeSkipped writes the skipped entries behind the archive's end, where no tool reads and a curious person can.
func (p *packing) writeSkipped() {
	text, err := json.Marshal(map[string]any{"skipped": p.sum.Skipped, "more": p.sum.More})
	if err != nil || p.flush() != nil {
		return
	}
	p.buffer = append(append(p.buffer, text[:min(len(text), p.free())]...), '\n')
}

func (p *packing) free() int { return cap(p.buffer) - len(p.buffer) - 2*tar.Block }

func (p *packing) flush() error {
	if len(p.buffer) == p.room {
		return nil
	}
	err := p.send(p.buffer)
	p.buffer, p.sent = p.buffer[:p.room], time.Now()
	return err
}

// pass sends the buffer if it is large or old enough, and then the large file that fill has found.
func (p *packing) pass() error {
	if p.large == nil && p.entry == nil {
		if time.Since(p.sent) < sayAfter {
			return nil
		}
		if len(p.buffer) == p.room { // only skipped entries so far: the host must not take the keeper for dead
			p.sent = time.Now()
			return p.send(nil)
		}
	}
	if err := p.flush(); err != nil || p.large == nil {
		return err
	}
	s := p.large
	for left := s.size; left > 0; {
		piece := p.buffer[p.room:min(int64(cap(p.buffer)), int64(p.room)+left)]
		n, err := iolimit.ReadAt(s.fd, piece, s.size-left)
		if err == io.EOF {
			err = errShrank
		}
		if err != nil {
			return at(s.name, err)
		}
		p.buffer = p.buffer[:p.room+n]
		if err := p.flush(); err != nil {
			return err
		}
		left -= int64(n)
	}
	p.buffer = append(p.buffer, make([]byte, tar.Padded(s.size)-s.size)...)
	p.sum.Files++
	p.sum.Bytes += s.size
	p.large = nil
	return syscall.Close(s.fd)
}

var errShrank = errors.New("it became shorter while it was read")
