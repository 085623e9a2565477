// Package launchproto defines the messages between the keeper and its launchers: length-prefixed, on a stream socket.
// Strings are bytes with a length, because an argument need not be UTF-8. The sudo client uses the same messages.
package launchproto

import (
	"encoding/binary"
	"errors"
	"io"
)

// MaxRequest bounds one request; the kernel's bound on argv and env is far lower.
const MaxRequest = 8 << 20

// Kinds of requests (keeper to launcher).
const (
	Start  byte = 1 + iota // with stdin, stdout, stderr and optionally fd 3 as ancillary fds
	Signal                 // to the job's process group
	Move                   // to the cgroup of the ancillary fd, a cgroup.procs file; started processes stay behind
)

// Request is a message to a launcher.
type Request struct {
	Kind      byte
	Job       uint32
	Signal    uint32
	UID, GID  uint32
	OpenFiles uint32 // 0: as inherited
	Processes uint32 // per user; 0: as inherited
	Terminal  uint32 // 1: stdin is a terminal and becomes the controlling one
	Groups    []uint32
	Dir       string
	Path      string // search path for bare program names
	User      string // only from the sudo client: the target user
	Argv      []string
	Env       []string
}

// Kinds of events (launcher to keeper).
const (
	Ready   byte = 1 + iota // Value 1: in its cgroup
	Started                 // Value: the pid
	Failed                  // Value: the errno
	Exited                  // Value: the wait status; this and Empty only from a launcher outside of a cgroup
	Empty                   // no process of any job up to Job is left
	Moved                   // Value 1: in the other cgroup
	Refused                 // only to the sudo client; Value: one of the reasons below
)

// Reasons of Refused.
const (
	NotAllowed uint32 = 1 + iota
	UnknownUser
	NoCommand // the caller belongs to no command of the keeper, or the command has ended
	BadDirectory
)

// Event is a launcher's report, of fixed size.
type Event struct {
	Kind   byte
	Job    uint32
	Value  uint32
	CPU    uint64 // microseconds
	MaxRSS uint64 // bytes
}

// EventSize is the length of an encoded Event.
const EventSize = 25

var errShort = errors.New("truncated message")

// Encode returns the request, prefixed with its length.
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

// count reads the length of a list of items that take at least 4 bytes each.
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

// Encode returns the event's encoding.
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
