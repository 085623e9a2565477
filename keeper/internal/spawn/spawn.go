// Package spawn is what the keeper and its launchers say to each other: length-prefixed messages on a stream socket.
// Strings are bytes with a length, so that an argument need not be UTF-8.
package spawn

import (
	"encoding/binary"
	"errors"
	"io"
)

// MaxRequest bounds one request; the kernel's own bound on argv and env is far lower.
const MaxRequest = 8 << 20

// Kinds of requests (keeper to launcher).
const (
	Start  byte = 1 + iota // with stdin, stdout and stderr as ancillary fds, and what is to be fd 3, if anything
	Signal                 // to the job's process group
	Retire                 // leave: what you started lives on without you
)

// Request asks a launcher for something.
type Request struct {
	Kind      byte
	Job       uint32
	Signal    uint32
	UID, GID  uint32
	OpenFiles uint32 // 0: as inherited
	Processes uint32 // of one user; 0: as inherited
	Terminal  uint32 // 1: stdin is one, and becomes the controlling terminal
	Groups    []uint32
	Dir       string
	Path      string // where bare program names are looked for
	User      string // only from the sudo shim: who to become
	Argv      []string
	Env       []string
}

// Kinds of events (launcher to keeper).
const (
	Ready   byte = 1 + iota // Value 1: it sits in its cgroup
	Started                 // Value: the pid
	Failed                  // Value: the errno
	Exited                  // Value: the wait status
	Empty                   // no process of any job up to Job is left
	Retired                 // the last word: whose exit was not reported until now is the keeper's child from here on
	Refused                 // only to the sudo shim; Value: one of the reasons below
)

// Reasons of Refused.
const (
	NotAllowed uint32 = 1 + iota
	UnknownUser
	NoCommand // the caller belongs to no command of the keeper's, or that one has ended
	BadDirectory
)

// Event is what a launcher reports; it has a fixed size.
type Event struct {
	Kind   byte
	Job    uint32
	Value  uint32
	CPU    uint64 // microseconds
	MaxRSS uint64 // bytes
}

// EventSize is the length of an encoded Event.
const EventSize = 25

var errShort = errors.New("spawn: short message")

// Encode returns the request with its length in front.
func (r *Request) Encode() []byte {
	b := make([]byte, 4, 512)
	b = append(b, r.Kind)
	for _, n := range []uint32{r.Job, r.Signal, r.UID, r.GID, r.OpenFiles, r.Processes, r.Terminal, uint32(len(r.Groups))} {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	for _, g := range r.Groups {
		b = binary.BigEndian.AppendUint32(b, g)
	}
	b = appendStrings(b, []string{r.Dir, r.Path, r.User})
	b = appendStrings(b, r.Argv)
	b = appendStrings(b, r.Env)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func appendStrings(b []byte, list []string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(list)))
	for _, s := range list {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	return b
}

// Decode reads a request without its length.
func Decode(b []byte) (*Request, error) {
	d := decoder{b: b}
	r := &Request{Kind: d.byte()}
	for _, field := range []*uint32{&r.Job, &r.Signal, &r.UID, &r.GID, &r.OpenFiles, &r.Processes, &r.Terminal} {
		*field = d.uint32()
	}
	for n := d.count(); n > 0; n-- {
		r.Groups = append(r.Groups, d.uint32())
	}
	paths := d.strings()
	r.Argv, r.Env = d.strings(), d.strings()
	if d.bad || len(d.b) != 0 || len(paths) != 3 {
		return nil, errShort
	}
	r.Dir, r.Path, r.User = paths[0], paths[1], paths[2]
	return r, nil
}

type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n int) []byte {
	if d.bad || n > len(d.b) {
		d.bad = true
		return nil
	}
	head := d.b[:n]
	d.b = d.b[n:]
	return head
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) uint32() uint32 {
	if b := d.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// count reads a length of a list whose items take at least 4 bytes.
func (d *decoder) count() int {
	n := int(d.uint32())
	if n > len(d.b)/4 {
		d.bad = true
		return 0
	}
	return n
}

func (d *decoder) strings() []string {
	n := d.count()
	list := make([]string, 0, n)
	for ; n > 0; n-- {
		list = append(list, string(d.take(int(d.uint32()))))
	}
	return list
}

// Encode returns the event's fixed form.
func (e Event) Encode() []byte {
	b := append(make([]byte, 0, EventSize), e.Kind)
	b = binary.BigEndian.AppendUint32(b, e.Job)
	b = binary.BigEndian.AppendUint32(b, e.Value)
	b = binary.BigEndian.AppendUint64(b, e.CPU)
	return binary.BigEndian.AppendUint64(b, e.MaxRSS)
}

// ReadEvent reads one event.
func ReadEvent(r io.Reader) (Event, error) {
	var b [EventSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return Event{}, err
	}
	return Event{
		Kind: b[0], Job: binary.BigEndian.Uint32(b[1:]), Value: binary.BigEndian.Uint32(b[5:]),
		CPU: binary.BigEndian.Uint64(b[9:]), MaxRSS: binary.BigEndian.Uint64(b[17:]),
	}, nil
}

// Read reads one request that carries no fds.
func Read(r io.Reader, limit uint32) (*Request, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > limit {
		return nil, errShort
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	return Decode(body)
}
