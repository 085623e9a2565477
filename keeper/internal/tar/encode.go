package tar

import (
	"strconv"
	"strings"
)

const fieldName = 100

// Append writes an entry's header, with GNU long names if necessary. Names are bytes.
func Append(b []byte, e *Entry) []byte {
	name := e.Name
	if e.Type == Directory {
		name += "/"
	}
	if len(name) > fieldName {
		b = appendLong(b, longName, name)
	}
	if len(e.Link) > fieldName {
		b = appendLong(b, longLink, e.Link)
	}
	return appendHeader(b, e, name)
}

// Room returns an upper bound for the bytes that Append writes.
func Room(e *Entry) int {
	return 3*Block + int(Padded(int64(len(e.Name)+2))+Padded(int64(len(e.Link)+1)))
}

// End appends the end of an archive.
func End(b []byte) []byte { return append(append(b, zeros[:]...), zeros[:]...) }

func appendLong(b []byte, kind byte, value string) []byte {
	value += "\x00"
	b = appendHeader(b, &Entry{Type: kind, Size: int64(len(value)), Mode: 0o644}, "././@LongLink")
	return pad(append(b, value...), len(value))
}

func pad(b []byte, size int) []byte { return append(b, zeros[:Padded(int64(size))-int64(size)]...) }

// appendHeader writes a header without owners, which never travel.
func appendHeader(b []byte, e *Entry, name string) []byte {
	at := len(b)
	b = append(b, zeros[:]...)
	header := b[at:]
	copy(header[:fieldName], name)
	octal(header[100:108], int64(e.Mode))
	octal(header[108:116], 0)
	octal(header[116:124], 0)
	octal(header[124:136], e.Size)
	octal(header[136:148], max(e.Mtime, 0)/1e9)
	header[156] = e.Type
	copy(header[157:257], e.Link)
	copy(header[257:265], "ustar  \x00")
	octal(header[148:155], checksum(header))
	header[155] = ' '
	return b
}

// octal fills a field except its last byte; a number that is too large fills the whole field in base 256.
func octal(field []byte, n int64) {
	digits := strconv.FormatInt(n, 8)
	if room := len(field) - 1; len(digits) <= room {
		copy(field, strings.Repeat("0", room-len(digits)))
		copy(field[room-len(digits):], digits)
		return
	}
	for i := len(field) - 1; i > 0; i-- {
		field[i] = byte(n)
		n >>= 8
	}
	field[0] = 0x80
}
