package sftp

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"skerry/keeper/internal/linux"
)

var errUnsupported = errors.New("operation not supported")

// Flags of OPEN.
const (
	openRead     = 1
	openWrite    = 2
	openAppend   = 4
	openCreate   = 8
	openTruncate = 16
	openNew      = 32
)

// path reads a path; the empty one is the working directory.
func path(in *input) (string, error) {
	name := in.text()
	if strings.Contains(name, "\x00") {
		return "", errPath
	}
	if name == "" {
		name = "."
	}
	return name, nil
}

func (s *server) open(id uint32, in *input) (output, error) {
	name, err := path(in)
	wanted := in.uint32()
	given := in.attributes()
	if in.bad || err != nil {
		return nil, err
	}
	mode := uint32(0o666)
	if given.flags&hasMode != 0 {
		mode = given.mode & 0o7777
	}
	fd, err := syscall.Open(name, openFlags(wanted)|syscall.O_CLOEXEC|syscall.O_NOCTTY, mode)
	if err != nil {
		return nil, err
	}
	return s.add(&handle{file: os.NewFile(uintptr(fd), name), append: wanted&openAppend != 0}, id)
}

func openFlags(wanted uint32) (flags int) {
	switch {
	case wanted&openRead != 0 && wanted&(openWrite|openAppend) != 0:
		flags = syscall.O_RDWR
	case wanted&(openWrite|openAppend) != 0:
		flags = syscall.O_WRONLY
	}
	for flag, bit := range map[uint32]int{
		openAppend: syscall.O_APPEND, openCreate: syscall.O_CREAT, openTruncate: syscall.O_TRUNC, openNew: syscall.O_EXCL,
	} {
		if wanted&flag != 0 {
			flags |= bit
		}
	}
	return flags
}

// readFile answers a READ. It repeats short reads: a client takes a short answer for the end of its block.
func (s *server) readFile(id uint32, in *input) (output, error) {
	h, err := s.find(in.text(), false)
	at, size := in.uint64(), in.uint32()
	if in.bad || err != nil {
		return nil, err
	}
	if at > math.MaxInt64 {
		return nil, io.EOF
	}
	size = min(size, maxData)
	answer := append(output(s.data[:0]), reply(msgData, id)...)
	start := len(answer) + 4
	answer = answer[:start+int(size)]
	n, err := h.file.ReadAt(answer[start:], int64(at))
	if errors.Is(err, syscall.ESPIPE) { // a FIFO, a device
		n, err = h.file.Read(answer[start:])
	}
	if n == 0 && size > 0 {
		if err == nil {
			err = io.EOF
		}
		return nil, err
	}
	answer = answer[:start+n]
	binary.BigEndian.PutUint32(answer[start-4:], uint32(n))
	return answer, nil
}

func (s *server) write(in *input) error {
	h, err := s.find(in.text(), false)
	at, data := in.uint64(), in.bytes()
	if in.bad || err != nil {
		return err
	}
	if at > math.MaxInt64-uint64(len(data)) {
		return syscall.EFBIG
	}
	if !h.append {
		_, err = h.file.WriteAt(data, int64(at))
	}
	if h.append || errors.Is(err, syscall.ESPIPE) {
		_, err = h.file.Write(data)
	}
	return err
}

func (s *server) fstat(id uint32, in *input) (output, error) {
	h := s.handles[in.text()]
	if in.bad || h == nil {
		return nil, errHandle
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(int(h.file.Fd()), &st); err != nil {
		return nil, err
	}
	return reply(msgAttrs, id).attributes(attributesOf(&st)), nil
}

func (s *server) fsetstat(in *input) error {
	h := s.handles[in.text()]
	a := in.attributes()
	if in.bad || h == nil {
		return errHandle
	}
	return set(a, h.file.Truncate, h.file.Chmod, h.file.Chown, func(times []syscall.Timespec) error {
		return linux.SetTimesAt(int(h.file.Fd()), "", times)
	})
}

// set applies attributes: the size first, because writing changes the times, and the owner before the mode, because it
// removes the set-user-ID bit.
func set(
	a attributes, truncate func(int64) error, chmod func(os.FileMode) error, chown func(int, int) error,
	times func([]syscall.Timespec) error,
) error {
	if a.flags&hasSize != 0 {
		if a.size > math.MaxInt64 {
			return errAttr
		}
		if err := truncate(int64(a.size)); err != nil {
			return err
		}
	}
	if a.flags&hasOwner != 0 {
		if err := chown(int(a.uid), int(a.gid)); err != nil {
			return err
		}
	}
	if a.flags&hasMode != 0 {
		if err := chmod(fileMode(a.mode)); err != nil {
			return err
		}
	}
	if a.flags&hasTimes != 0 {
		return times([]syscall.Timespec{{Sec: int64(a.atime)}, {Sec: int64(a.mtime)}})
	}
	return nil
}

// fileMode returns permission bits in Go's form.
func fileMode(mode uint32) os.FileMode {
	m := os.FileMode(mode & 0o777)
	for bit, flag := range map[uint32]os.FileMode{
		syscall.S_ISUID: os.ModeSetuid, syscall.S_ISGID: os.ModeSetgid, syscall.S_ISVTX: os.ModeSticky,
	} {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return m
}

// paths executes the requests that name a path and no handle.
func paths(kind byte, id uint32, in *input) (output, error) {
	if kind < msgLstat || kind > msgSymlink {
		return nil, errUnsupported
	}
	name, err := path(in)
	if in.bad || err != nil {
		return nil, err
	}
	switch kind {
	case msgStat, msgLstat:
		return stat(kind, id, name)
	case msgSetstat:
		return nil, setstat(name, in)
	case msgRemove:
		return nil, syscall.Unlink(name)
	case msgMkdir:
		return nil, mkdir(name, in)
	case msgRmdir:
		return nil, syscall.Rmdir(name)
	case msgRealpath:
		return realpath(id, name)
	case msgReadlink:
		target, err := os.Readlink(name)
		return named(id, target), err
	case msgRename, msgSymlink:
		return nil, two(kind, name, in)
	}
	return nil, errUnsupported
}

func stat(kind byte, id uint32, name string) (output, error) {
	var st syscall.Stat_t
	find := syscall.Stat
	if kind == msgLstat {
		find = syscall.Lstat
	}
	if err := find(name, &st); err != nil {
		return nil, err
	}
	return reply(msgAttrs, id).attributes(attributesOf(&st)), nil
}

func setstat(name string, in *input) error {
	a := in.attributes()
	if in.bad {
		return errMessage
	}
	return set(
		a, func(size int64) error { return syscall.Truncate(name, size) },
		func(mode os.FileMode) error { return os.Chmod(name, mode) },
		func(uid, gid int) error { return os.Chown(name, uid, gid) },
		func(times []syscall.Timespec) error { return syscall.UtimesNano(name, times) },
	)
}

func mkdir(name string, in *input) error {
	a := in.attributes()
	mode := uint32(0o777)
	if a.flags&hasMode != 0 {
		mode = a.mode & 0o7777
	}
	if in.bad {
		return errMessage
	}
	return syscall.Mkdir(name, mode)
}

// realpath returns an absolute path without links; its last name need not exist.
func realpath(id uint32, name string) (output, error) {
	full, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	found, err := filepath.EvalSymlinks(full)
	if errors.Is(err, syscall.ENOENT) {
		var parent string
		if parent, err = filepath.EvalSymlinks(filepath.Dir(full)); err == nil {
			found = filepath.Join(parent, filepath.Base(full))
		}
	}
	return named(id, found), err
}

// named returns one name without attributes.
func named(id uint32, name string) output {
	return reply(msgName, id).uint32(1).text(name).text(name).uint32(0)
}

// two executes the requests with a second path.
func two(kind byte, first string, in *input) error {
	second, err := path(in)
	if in.bad || err != nil {
		return err
	}
	if kind == msgSymlink { // OpenSSH's order: first the target
		return syscall.Symlink(first, second)
	}
	return linux.Rename(atCwd, first, atCwd, second, linux.NoReplace)
}

const atCwd = -100

// touchLink sets attributes of a link itself.
func touchLink(name string, in *input) error {
	a := in.attributes()
	if in.bad {
		return errMessage
	}
	if a.flags&hasSize != 0 {
		return errAttr
	}
	return set(
		a, nil, func(os.FileMode) error { return nil }, // Linux has no mode of links
		func(uid, gid int) error { return os.Lchown(name, uid, gid) },
		func(times []syscall.Timespec) error { return linux.SetTimesAt(atCwd, name, times) },
	)
}

// longName returns a line of `ls -l`, which clients print.
func longName(name string, st *syscall.Stat_t) string {
	var b strings.Builder
	b.WriteString(modeText(st.Mode))
	field := func(text string, width int, left bool) {
		b.WriteByte(' ')
		pad := strings.Repeat(" ", max(0, width-len(text)))
		if left {
			b.WriteString(text + pad)
		} else {
			b.WriteString(pad + text)
		}
	}
	field(number(uint64(st.Nlink)), 4, false)
	field(number(uint64(st.Uid)), 8, true)
	field(number(uint64(st.Gid)), 8, true)
	field(number(uint64(max(st.Size, 0))), 12, false)
	when := time.Unix(st.Mtim.Sec, 0)
	layout := "Jan _2 15:04"
	if age := time.Since(when); age < -time.Hour || age > 182*24*time.Hour {
		layout = "Jan _2  2006"
	}
	field(when.Format(layout), 0, true)
	b.WriteString(" " + name)
	return b.String()
}

func modeText(mode uint32) string {
	kinds := map[uint32]byte{
		syscall.S_IFDIR: 'd', syscall.S_IFLNK: 'l', syscall.S_IFIFO: 'p', syscall.S_IFSOCK: 's', syscall.S_IFCHR: 'c',
		syscall.S_IFBLK: 'b',
	}
	text := []byte("-rwxrwxrwx")
	if kind := kinds[mode&syscall.S_IFMT]; kind != 0 {
		text[0] = kind
	}
	for i := range 9 {
		if mode&(1<<(8-i)) == 0 {
			text[i+1] = '-'
		}
	}
	for _, special := range []struct {
		bit  uint32
		at   int
		char byte
	}{{syscall.S_ISUID, 3, 's'}, {syscall.S_ISGID, 6, 's'}, {syscall.S_ISVTX, 9, 't'}} {
		if mode&special.bit == 0 {
			continue
		}
		if text[special.at] == '-' {
			special.char -= 'a' - 'A'
		}
		text[special.at] = special.char
	}
	return string(text)
}
