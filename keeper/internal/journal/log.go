package journal

import (
	"bytes"
	"syscall"
	"time"

	"skerry/keeper/internal/iolimit"
	"skerry/keeper/internal/linux"
)

const maxLine = 64 << 10

// Log is a file of lines beside the journals. A file from an earlier start is read once and never written to, because
// root inside may have put anything in its place.
type Log struct {
	store *Store
	name  string
	fd    int // -1: not created yet
	size  int64
	found int64 // mtime of the file that was read, in seconds
}

// Log returns a log; its file is created with the first line.
func (s *Store) Log(name string) *Log { return &Log{store: s, name: name, fd: -1} }

// Changed returns the time of the last write before this start, or now if it is unknown.
func (l *Log) Changed() time.Time {
	if now := time.Now(); l.found <= 0 || l.found > now.Unix() {
		return now
	}
	return time.Unix(l.found, 0)
}

// Size returns the size of the file.
func (l *Log) Size() int64 { return l.size }

// Read passes on each line of an earlier start, up to `limit` bytes.
func (l *Log) Read(limit int64, line func([]byte)) {
	fd, st := l.store.find(l.name)
	if fd < 0 {
		return
	}
	l.found = st.Mtim.Sec
	defer syscall.Close(fd)
	window := make([]byte, maxLine)
	held := 0
	for at := int64(0); at < min(st.Size, limit); {
		n := readAt(fd, window[held:], at)
		if n == 0 {
			return
		}
		at, held = at+int64(n), held+n
		end := bytes.LastIndexByte(window[:held], '\n')
		if end < 0 {
			return // not a line of the keeper
		}
		for _, text := range bytes.Split(window[:end], []byte{'\n'}) {
			line(text)
		}
		held = copy(window, window[end+1:held])
	}
}

// find opens a name if it is a regular file.
func (s *Store) find(name string) (fd int, st syscall.Stat_t) {
	err := linux.Lstatat(s.directory(), name, &st)
	if err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return -1, st
	}
	if fd, err = s.open(name, fileID{uint64(st.Dev), st.Ino}); err != nil {
		return -1, st
	}
	return fd, st
}

// Append adds all lines or none.
func (l *Log) Append(lines []byte) error {
	if l.fd < 0 {
		return l.Replace(lines)
	}
	return iolimit.Do(func() error {
		err := writeAt(l.fd, lines, l.size)
		if err == nil {
			l.size += int64(len(lines))
		}
		return err
	})
}

// Replace writes the lines to a new file and renames it over the old one.
func (l *Log) Replace(lines []byte) error {
	return iolimit.Do(func() error {
		const fresh = ".new"
		fd, err := l.store.create(l.name + fresh)
		if err != nil {
			return err
		}
		dir := l.store.directory()
		if err = writeAt(fd, lines, 0); err == nil {
			err = syscall.Renameat(dir, l.name+fresh, dir, l.name)
		}
		if err != nil {
			_ = syscall.Close(fd)
			_ = l.store.unlink(l.name + fresh)
			return err
		}
		if l.fd >= 0 {
			_ = syscall.Close(l.fd)
		}
		l.fd, l.size = fd, int64(len(lines))
		return nil
	})
}
