package track

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"syscall"

	"skerry/keeper/internal/linux"
)

// Entry describes a path. Type is file, link, directory or other; gone: nothing exists there or below; ignored:
// excluded by the project's rules, with everything below; git: a .git that is not the project's own.
type Entry struct {
	Path    string
	Type    string
	Mode    uint32
	Size    int64
	Inode   uint64
	Ctime   int64
	Written bool // its content may differ even if all other fields are equal
	Target  string
	links   uint64
}

func (e *Entry) fill(st *syscall.Stat_t) {
	e.Mode, e.Size, e.Inode, e.Ctime, e.links = st.Mode&0o7777, st.Size, st.Ino, st.Ctim.Nano(), uint64(st.Nlink)
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		e.Type = "file"
	case syscall.S_IFDIR:
		e.Type = "directory"
	case syscall.S_IFLNK:
		e.Type = "link"
	default:
		e.Type = "other"
	}
}

// look describes a name in a directory.
func (e *Entry) look(dir int, name string) error {
	var st syscall.Stat_t
	if err := linux.Lstatat(dir, name, &st); err != nil {
		return err
	}
	e.fill(&st)
	if e.Type != "link" {
		return nil
	}
	var err error
	e.Target, err = linux.Readlinkat(dir, name)
	return err
}

// Append encodes the entry as a list with texts in base64.
func (e *Entry) Append(b []byte) []byte {
	b = appendText(append(b, '['), e.Path)
	b = append(append(append(b, ",\""...), e.Type...), '"', ',')
	b = append(strconv.AppendUint(b, uint64(e.Mode), 10), ',')
	b = append(strconv.AppendInt(b, e.Size, 10), ',')
	b = append(strconv.AppendUint(b, e.Inode, 10), ',')
	b = append(strconv.AppendInt(b, e.Ctime, 10), ',')
	b = append(strconv.AppendBool(b, e.Written), ',')
	if e.Type == "link" {
		b = appendText(b, e.Target)
	} else {
		b = append(b, "null"...)
	}
	return append(b, ']')
}

// MarshalJSON encodes a single entry.
func (e *Entry) MarshalJSON() ([]byte, error) { return e.Append(nil), nil }

var _ json.Marshaler = (*Entry)(nil)

func appendText(b []byte, s string) []byte {
	return append(base64.StdEncoding.AppendEncode(append(b, '"'), []byte(s)), '"')
}
