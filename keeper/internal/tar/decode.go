package tar

import (
	"bytes"
	"strconv"
	"strings"
)

// Decoder reads headers off the front of a buffer. What it keeps between calls is what an extended header said of the
// next entry.
type Decoder struct {
	Ended         bool // the archive's end was read
	path, link    string
	size, mtime   int64
	sized, timed  bool
	named, linked bool
}

var zeros [Block]byte

// Next takes the next header off the front of b, and says how many bytes it was. An entry's content follows it. Without an
// entry and an error it has read something about the next one, or the end. A header that is not all there is ErrMore.
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
		return nil, 0, Malformed("what should be a header is none")
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
		err = Malformed("it has an entry of a kind that is not understood: " + quoted(path+text(header[:100])))
	}
	return entry, Block, err
}

// meta reads what stands before an entry.
func (d *Decoder) meta(b []byte, kind byte, size int64) (*Entry, int, error) {
	if size > maxMeta {
		return nil, 0, Malformed("it has a header that is too long")
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

func (d *Decoder) entry(header []byte, size int64) (*Entry, error) {
	e := &Entry{Type: kindOf(header[156]), Size: size}
	name := text(header[:100])
	if prefix := text(header[345:500]); prefix != "" && string(header[257:263]) == "ustar\x00" {
		name = prefix + "/" + name
	}
	if d.named {
		name = d.path
	}
	if e.Type == File && strings.HasSuffix(name, "/") { // the way before there was a type for it
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

// finish reads what belongs to one kind of entry only.
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
			return nil, Malformed("it has a link to nowhere: " + quoted(e.Name))
		}
	case HardLink:
		target, err := clean(e.Link)
		if err != nil {
			return nil, err
		}
		e.Link = target
	}
	if e.Type != File {
		e.Size = 0 // some give a link the size of what it leads to, and no content
	}
	if e.Name == "" && e.Type != Directory {
		return nil, Malformed("it has an entry without a name")
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

// records reads PAX records: "length key=value\n".
func (d *Decoder) records(content string) error {
	for content != "" {
		digits, _, _ := strings.Cut(content, " ")
		length, err := strconv.Atoi(digits)
		if err != nil || length <= len(digits)+2 || length > len(content) || content[length-1] != '\n' {
			return Malformed("it has a PAX record that can't be read")
		}
		key, value, found := strings.Cut(content[len(digits)+1:length-1], "=")
		if !found {
			return Malformed("it has a PAX record that can't be read")
		}
		if err := d.record(key, value); err != nil {
			return err
		}
		content = content[length:]
	}
	return nil
}

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
			return Malformed("it has a sparse file, which is not understood: make it without --sparse")
		}
	}
	if err != nil || d.size < 0 || strings.Contains(d.path, "\x00") || strings.Contains(d.link, "\x00") {
		return Malformed("it has a PAX record that can't be read")
	}
	return nil
}

// nanoseconds reads a decimal number of seconds; a float would not hold it.
func nanoseconds(value string) int64 {
	whole, part, _ := strings.Cut(value, ".")
	seconds, _ := strconv.ParseInt(whole, 10, 62)
	nanos, _ := strconv.ParseInt((part + "000000000")[:9], 10, 62)
	return seconds*1e9 + nanos
}

// globals reads records for all entries that follow. Comments are welcome; a name or size for all is nonsense.
func (d *Decoder) globals(content string) error {
	if err := d.records(content); err != nil {
		return err
	}
	if d.named || d.linked || d.sized {
		return Malformed("it has one name or size for all its entries")
	}
	return nil
}
