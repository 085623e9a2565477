// Package tar reads and writes archives for the transfer of directories: ustar with the long names of GNU and PAX. It
// is strict, works on bytes in memory, and holds at most one header of a few KiB. archive/tar would not do: it pulls
// from a reader, whereas the keeper works on the bytes in its buffer, and it would add 130 KB to the binary.
package tar

import (
	"bytes"
	"errors"
	"strings"
)

// Block is the unit of an archive.
const Block = 512

// Types of entries. Other has no place in a sandbox: a device or a FIFO.
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

	maxMeta = 64 << 10 // bytes of a name or of a set of PAX records
	// MaxName is the longest path of an entry, enough for a thousand levels of directories.
	MaxName = 32 << 10
	maxLink = 4095 // the kernel's bound on a link's target
)

// Malformed is the reason why an archive cannot be read.
type Malformed string

func (m Malformed) Error() string { return "invalid archive: " + string(m) }

// ErrMore means that the next header is incomplete.
var ErrMore = errors.New("more")

// Entry is one entry of an archive. Name contains no "." or ".." and no leading "/"; "" is the root itself.
type Entry struct {
	Name  string
	Type  byte
	Mode  uint32
	Size  int64
	Mtime int64  // nanoseconds
	Link  string // target of a symbolic link, or name of a hard link
}

// Padded returns the space that content takes in an archive.
func Padded(size int64) int64 { return (size + Block - 1) &^ (Block - 1) }

// clean removes the redundant parts of a path.
func clean(name string) (string, error) {
	switch {
	case strings.HasPrefix(name, "/"):
		return "", Malformed("absolute name: " + quoted(name))
	case len(name) > MaxName:
		return "", Malformed("the name is too long: " + quoted(name))
	}
	parts := make([]string, 0, 16)
	for _, part := range strings.Split(name, "/") {
		switch part {
		case "", ".":
		case "..":
			return "", Malformed("the name leaves the directory: " + quoted(name))
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

// number parses octal digits, or GNU's base 256, which starts with a set bit.
func number(field []byte) (int64, error) {
	const bad = Malformed("invalid number in a header")
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
