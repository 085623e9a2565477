package sftp

import (
	"encoding/binary"
	"errors"
	"math"
	"syscall"
)

// Message types of version 3.
const (
	msgInit     = 1
	msgVersion  = 2
	msgOpen     = 3
	msgClose    = 4
	msgRead     = 5
	msgWrite    = 6
	msgLstat    = 7
	msgFstat    = 8
	msgSetstat  = 9
	msgFsetstat = 10
	msgOpendir  = 11
	msgReaddir  = 12
	msgRemove   = 13
	msgMkdir    = 14
	msgRmdir    = 15
	msgRealpath = 16
	msgStat     = 17
	msgRename   = 18
	msgReadlink = 19
	msgSymlink  = 20
	msgStatus   = 101
	msgHandle   = 102
	msgData     = 103
	msgName     = 104
	msgAttrs    = 105
	msgExtended = 200
	msgReply    = 201
)

// Status codes.
const (
	statusOK          = 0
	statusEOF         = 1
	statusNoFile      = 2
	statusPermission  = 3
	statusFailure     = 4
	statusBadMessage  = 5
	statusUnsupported = 8
)

// Flags of attributes.
const (
	hasSize  = 1
	hasOwner = 2
	hasMode  = 4
	hasTimes = 8
	hasMore  = 1 << 31
)

var errMessage = errors.New("malformed packet")

// attributes are the fields of a file that a packet carries; flags names the present ones.
type attributes struct {
	flags        uint32
	size         uint64
	uid, gid     uint32
	mode         uint32
	atime, mtime uint32
}

func attributesOf(st *syscall.Stat_t) attributes {
	return attributes{
		flags: hasSize | hasOwner | hasMode | hasTimes, size: uint64(max(st.Size, 0)), uid: st.Uid, gid: st.Gid,
		mode: st.Mode, atime: seconds(st.Atim.Sec), mtime: seconds(st.Mtim.Sec),
	}
}

// seconds returns a time in the 32 bits of the protocol.
func seconds(s int64) uint32 { return uint32(min(max(s, 0), math.MaxUint32)) }

// input reads the fields of a packet. The first missing byte sets bad, and all later fields are zero.
type input struct {
	data []byte
	bad  bool
}

func (in *input) take(n uint64) []byte {
	if in.bad || n > uint64(len(in.data)) {
		in.bad = true
		return nil
	}
	part := in.data[:n]
	in.data = in.data[n:]
	return part
}

func (in *input) uint32() uint32 {
	if b := in.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (in *input) uint64() uint64 {
	if b := in.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (in *input) bytes() []byte { return in.take(uint64(in.uint32())) }

func (in *input) text() string { return string(in.bytes()) }

func (in *input) attributes() (a attributes) {
	a.flags = in.uint32()
	if a.flags&hasSize != 0 {
		a.size = in.uint64()
	}
	if a.flags&hasOwner != 0 {
		a.uid, a.gid = in.uint32(), in.uint32()
	}
	if a.flags&hasMode != 0 {
		a.mode = in.uint32()
	}
	if a.flags&hasTimes != 0 {
		a.atime, a.mtime = in.uint32(), in.uint32()
	}
	if a.flags&hasMore != 0 {
		for range in.uint32() {
			if in.bytes(); in.bad {
				break
			}
			in.bytes()
		}
	}
	return a
}

// output builds a packet.
type output []byte

func reply(kind byte, id uint32) output { return output{0, 0, 0, 0, kind}.uint32(id) }

func (o output) uint32(n uint32) output { return binary.BigEndian.AppendUint32(o, n) }

func (o output) uint64(n uint64) output { return binary.BigEndian.AppendUint64(o, n) }

func (o output) text(s string) output { return append(o.uint32(uint32(len(s))), s...) }

func (o output) attributes(a attributes) output {
	return o.uint32(a.flags).uint64(a.size).uint32(a.uid).uint32(a.gid).uint32(a.mode).uint32(a.atime).uint32(a.mtime)
}

// finish sets the length of the packet.
func (o output) finish() []byte {
	binary.BigEndian.PutUint32(o, uint32(len(o)-4))
	return o
}
