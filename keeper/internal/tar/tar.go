// Package tar has the archives that directories travel in: ustar with the long names of GNU and PAX. It is strict, works
// on bytes that are in memory already, and never holds more than one header of at most a few KiB.
package tar

import (
	"bytes"
	"errors"
	"strings"
)

// Block is the unit of an archive.
const Block = 512

// What an entry can be. Other is what has no place in a sandbox: a device or a FIFO.
const (
	File      = '0'
	HardLink  = '1'
	Link      = '2'
	Directory = '5'
	Other     = '?'
)

const (
	global   = 'g'
	extended = 'x'
	longName = 'L'
	longLink = 'K'

	maxMeta = 64 << 10 // of a name or a set of PAX records
	// MaxName is the longest path of an entry: one in a thousand levels of directories, with room for their names.
	MaxName = 32 << 10
	maxLink = 4095 // the kernel's, of a link's target
)

// Malformed says why an archive can't be read.
type Malformed string

func (m Malformed) Error() string { return "the archive: " + string(m) }

// ErrMore means that an archive's next header is not all there yet.
var ErrMore = errors.New("more")

// Entry is one thing of an archive. Name has no "." or ".." in it and does not begin with "/"; "" is the root itself.
type Entry struct {
	Name  string
	Type  byte
	Mode  uint32
	Size  int64
	Mtime int64  // nanoseconds
	Link  string // a link's target as it is, or a hard link's name
}

// Padded is how many bytes content takes in an archive.
func Padded(size int64) int64 { return (size + Block - 1) &^ (Block - 1) }

// clean takes a path apart and puts it together without what means nothing.
func clean(name string) (string, error) {
	switch {
	case strings.HasPrefix(name, "/"):
		return "", Malformed("it has an absolute name: " + quoted(name))
	case len(name) > MaxName:
		return "", Malformed("it has a name that is too long: " + quoted(name))
	}
	parts := make([]string, 0, 16)
	for _, part := range strings.Split(name, "/") {
		switch part {
		case "", ".":
		case "..":
			return "", Malformed("it has a name that leads out of it: " + quoted(name))
		default:
			parts = append(parts, part)
		}
	}
	if joined := strings.Join(parts, "/"); joined != name {
		return joined, nil
	}
	return name, nil
}

func quoted(name string) string {
	const shown = 200
	if len(name) > shown {
		name = name[:shown] + "…"
	}
	return `"` + strings.ToValidUTF8(name, "\uFFFD") + `"`
}

func text(field []byte) string {
	if end := bytes.IndexByte(field, 0); end >= 0 {
		field = field[:end]
	}
	return string(field)
}

// number reads octal digits, or GNU's base 256, which begins with a set bit.
func number(field []byte) (int64, error) {
	const bad = Malformed("a number in a header can't be read")
	if field[0] == 0x80 {
		var n int64
		for _, b := range field[1:] {
			if n > 1<<54 {
				return 0, bad
			}
			n = n<<8 | int64(b)
		}
		return n, nil
	}
	digits := bytes.Trim(field, " \x00")
	if len(digits) > 20 {
		return 0, bad
	}
	var n int64
	for _, d := range digits {
		if d < '0' || d > '7' {
			return 0, bad
		}
		n = n<<3 | int64(d-'0')
	}
	return n, nil
}

func checksum(header []byte) int64 {
	sum := int64(8 * ' ')
	for i, b := range header[:Block] {
		if i < 148 || i >= 156 {
			sum += int64(b)
		}
	}
	return sum
}
