package tar

import (
	"bytes"
	"strconv"
	"strings"
)

// Decoder reads headers from the front of a buffer. Between calls it keeps the extended headers of the next entry.
type Decoder struct {
	Ended         bool // the end of the archive was read
	path, link    string
	size, mtime   int64
	sized, timed  bool
	named, linked bool
}

var zeros [Block]byte

// Next reads the next header from the front of b and returns its length. The content of an entry follows it. Without an
// entry and an error, it has read an extended header or the end. ErrMore: the header is incomplete.
func (d *Decoder) Next(b []byte) (*Entry, int, error) {
	if len(b) < Block {
		return nil, 0, ErrMore
	}
	header := b[:Block]
	if bytes.Equal(header, zeros[:]) {
		d.Ended = true
		return nil, Block, nil
	}
	if sum, err := number(header[148:156]); err != nil || sum != checksum(header) {
		return nil, 0, Malformed("invalid header")
	}
	size, err := number(header[124:136])
	if err != nil {
		return nil, 0, err
	}
	switch kind := header[156]; kind {
	case global, extended, longName, longLink:
		return d.meta(b, kind, size)
	}
	entry, err := d.entry(header, size)
	path := d.path
	*d = Decoder{}
	if err == nil && entry == nil {
		err = Malformed("unsupported entry type: " + quoted(path+text(header[:100])))
	}
	return entry, Block, err
}

// meta reads an extended header.
func (d *Decoder) meta(b []byte, kind byte, size int64) (*Entry, int, error) {
	if size > maxMeta {
		return nil, 0, Malformed("a header is too long")
	}
	whole := Block + int(Padded(size))
	if len(b) < whole {
		return nil, 0, ErrMore
	}
	content := b[Block : Block+size]
	switch kind {
	case longName:
		d.path, d.named = text(content), true
	case longLink:
		d.link, d.linked = text(content), true
	case extended:
		return nil, whole, d.records(string(content))
	case global:
		return nil, whole, (&Decoder{}).globals(string(content))
	}
	return nil, whole, nil
}

// entry combines a header with the extended headers before it.
func (d *Decoder) entry(header []byte, size int64) (*Entry, error) {
	e := &Entry{Type: kindOf(header[156]), Size: size}
	name := text(header[:100])
	if prefix := text(header[345:500]); prefix != "" && string(header[257:263]) == "ustar\x00" {
		name = prefix + "/" + name
	}
	if d.named {
		name = d.path
	}
	if e.Type == File && strings.HasSuffix(name, "/") { // the convention before the directory type existed
		e.Type = Directory
	}
	mode, err := number(header[100:108])
	if err != nil {
		return nil, err
	}
	seconds, err := number(header[136:148])
	if err != nil || seconds > 1<<33 {
		seconds = 0
	}
	e.Mode, e.Mtime = uint32(mode&0o7777), seconds*1e9
	if d.sized {
		e.Size = d.size
	}
	if d.timed {
		e.Mtime = d.mtime
	}
	if e.Name, err = clean(name); err != nil {
		return nil, err
	}
	return e.finish(header, d)
}

// finish reads the fields of particular types.
func (e *Entry) finish(header []byte, d *Decoder) (*Entry, error) {
	e.Link = text(header[157:257])
	if d.linked {
		e.Link = d.link
	}
	switch e.Type {
	case 0:
		return nil, nil
	case File:
		e.Link = ""
	case Link:
		if e.Link == "" || len(e.Link) > maxLink {
			return nil, Malformed("a link has no valid target: " + quoted(e.Name))
		}
	case HardLink:
		target, err := clean(e.Link)
		if err != nil {
			return nil, err
		}
		e.Link = target
	}
	if e.Type != File {
		e.Size = 0 // some tools give a link the size of its target, and no content
	}
	if e.Name == "" && e.Type != Directory {
		return nil, Malformed("an entry has no name")
	}
	return e, nil
}

func kindOf(flag byte) byte {
	switch flag {
	case '0', 0, '7':
		return File
	case HardLink, Link, Directory:
		return flag
	case '3', '4', '6':
		return Other
	}
	return 0
}

// records parses PAX records: "length key=value\n".
func (d *Decoder) records(content string) error {
	for content != "" {
		digits, _, _ := strings.Cut(content, " ")
		length, err := strconv.Atoi(digits)
		if err != nil || length <= len(digits)+2 || length > len(content) || content[length-1] != '\n' {
			return Malformed("invalid PAX record")
		}
		key, value, found := strings.Cut(content[len(digits)+1:length-1], "=")
		if !found {
			return Malformed("invalid PAX record")
		}
		if err := d.record(key, value); err != nil {
			return err
		}
		content = content[length:]
	}
	return nil
}

// record applies one PAX record. Sparse files are rejected: read as ordinary ones they would be corrupt.
func (d *Decoder) record(key, value string) error {
	var err error
	switch key {
	case "path":
		d.path, d.named = value, true
	case "linkpath":
		d.link, d.linked = value, true
	case "size":
		d.size, err = strconv.ParseInt(value, 10, 62)
		d.sized = true
	case "mtime":
		var seconds float64
		if seconds, err = strconv.ParseFloat(value, 64); err == nil && seconds >= 0 && seconds < 1<<33 {
			d.mtime, d.timed = nanoseconds(value), true
		}
	default:
		if strings.HasPrefix(key, "GNU.sparse.") {
			return Malformed("sparse files are not supported: create the archive without --sparse")
		}
	}
	if err != nil || d.size < 0 || strings.Contains(d.path, "\x00") || strings.Contains(d.link, "\x00") {
		return Malformed("invalid PAX record")
	}
	return nil
}

// nanoseconds parses a decimal number of seconds; a float is not precise enough.
func nanoseconds(value string) int64 {
	whole, part, _ := strings.Cut(value, ".")
	seconds, _ := strconv.ParseInt(whole, 10, 62)
	nanos, _ := strconv.ParseInt((part + "000000000")[:9], 10, 62)
	return seconds*1e9 + nanos
}

// globals reads records for all following entries. Comments are harmless; a common name or size is an error.
func (d *Decoder) globals(content string) error {
	if err := d.records(content); err != nil {
		return err
	}
	if d.named || d.linked || d.sized {
		return Malformed("a global header sets a name or size")
	}
	return nil
}
