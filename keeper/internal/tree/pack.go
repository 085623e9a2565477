package tree

import (
	"encoding/json"
	"errors"
	"io"
	"syscall"
	"time"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/disk"
	"skerry/keeper/internal/files"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/pattern"
	"skerry/keeper/internal/rights"
	"skerry/keeper/internal/tar"
)

const (
	maxDepth  = 1024
	batch     = 512 // entries looked at with one change of rights
	sayAfter  = 2 * time.Second
	maxLinked = 10_000 // files with several names whose first one is remembered
)

// Send takes a piece of an archive, whose first bytes are room for a header of the caller's own; nil: work goes on, but
// there is nothing to send.
type Send func(piece []byte) error

// packing is a directory on its way out.
type packing struct {
	user    *accounts.User
	exclude pattern.Set
	levels  []*level
	entry   *linux.Dirent // looked at, but there was no room for it
	linked  map[inode]string
	large   *source
	send    Send
	room    int // at the front of the buffer, for the caller
	buffer  []byte
	sent    time.Time
	sum     Summary
}

// level is an open directory on the way from the root to where the packing is.
type level struct {
	fd      int
	name    string
	device  uint64
	dirents *linux.Dirents
}

type inode struct{ device, number uint64 }

// Open opens a directory to be packed. Those of /proc are refused: their files have no sizes, and some are the keeper's own.
func Open(area *files.Area, path string) (int, error) {
	fd, err := area.OpenDirectory(path, false)
	if err == nil && linux.OnProc(fd) {
		_ = syscall.Close(fd)
		return -1, syscall.EINVAL
	}
	return fd, err
}

// Pack sends a directory, whose fd it closes, as an archive. What can't be read or has no place in an archive is left out
// and told; an archive that can't be told truly any more ends with an error.
func Pack(user *accounts.User, root int, exclude pattern.Set, buffer []byte, room int, send Send) (*Summary, error) {
	p := &packing{
		user: user, exclude: exclude, linked: map[inode]string{}, send: send, room: room, buffer: buffer[:room],
		sent: time.Now(), sum: Summary{Skipped: []Skipped{}},
	}
	defer p.close()
	p.descend(root, "")
	for len(p.levels) > 0 {
		if err := rights.Do(user, p.fill); err != nil {
			return &p.sum, err
		}
		if err := p.pass(); err != nil {
			return &p.sum, err
		}
	}
	p.buffer = tar.End(p.buffer)
	if len(p.sum.Skipped) > 0 {
		p.tell()
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

// tell writes what was left out behind the archive's end, where no tool looks and whoever wonders can.
func (p *packing) tell() {
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

// pass sends what fill gathered, if it is much or old enough, and then the large file that it came to.
func (p *packing) pass() error {
	if p.large == nil && p.entry == nil {
		if time.Since(p.sent) < sayAfter {
			return nil
		}
		if len(p.buffer) == p.room { // nothing but what is left out: the host must not take that for silence
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
		n, err := disk.ReadAt(s.fd, piece, s.size-left)
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
