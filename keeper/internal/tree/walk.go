package tree

import (
	"strconv"
	"strings"
	"syscall"

	"skerry/keeper/internal/files"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/tar"
)

// source is a file larger than the buffer.
type source struct {
	name string
	fd   int
	size int64
}

// fill adds entries until the buffer is full, a large file is found, or the job is long enough. It runs with the user's
// rights.
func (p *packing) fill() error {
	for range batch {
		if len(p.levels) == 0 || p.large != nil {
			return nil
		}
		here := p.levels[len(p.levels)-1]
		entry := p.entry
		if p.entry = nil; entry == nil {
			var err error
			if entry, err = here.dirents.Next(); err != nil {
				p.sum.skip(here.name, "it cannot be read completely: "+err.Error())
				entry = nil
			}
		}
		if entry == nil {
			_ = syscall.Close(here.fd)
			p.levels = p.levels[:len(p.levels)-1]
			continue
		}
		if !p.add(here, entry) {
			p.entry = entry
			return nil
		}
	}
	return nil
}

func (p *packing) descend(fd int, name string) {
	var st syscall.Stat_t
	_ = syscall.Fstat(fd, &st)
	p.levels = append(p.levels, &level{fd, name, st.Dev, linux.NewDirents(fd)})
}

func (l *level) path(name string) string {
	if l.name == "" {
		return name
	}
	return l.name + "/" + name
}

// add puts one entry into the buffer; false: the buffer must be sent first.
func (p *packing) add(here *level, d *linux.Dirent) bool {
	e := &tar.Entry{Name: here.path(d.Name)}
	if p.free() < tar.Room(e)+2*tar.Block+4096 {
		return false
	}
	if p.exclude.MatchLast(e.Name, d.Type == syscall.DT_DIR) {
		return true
	}
	fd, err := syscall.Openat(here.fd, d.Name, linux.OPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		p.skip(e, err)
		return true
	}
	defer func() { _ = syscall.Close(fd) }()
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		p.skip(e, err)
		return true
	}
	e.Mode, e.Mtime = st.Mode&keptBits, st.Mtim.Nano()
	switch {
	case len(e.Name) > tar.MaxName-1:
		p.sum.skip(e.Name, "its path is too long")
	case st.Dev != here.device && linux.OnProc(fd):
		p.sum.skip(e.Name, "it is in /proc")
	case st.Mode&syscall.S_IFMT == syscall.S_IFDIR:
		p.directory(fd, e)
	case st.Mode&syscall.S_IFMT == syscall.S_IFLNK:
		p.link(here, d, e)
	case st.Mode&syscall.S_IFMT == syscall.S_IFREG:
		return p.file(fd, &st, e)
	default:
		p.sum.skip(e.Name, "it is a "+files.Kind(st.Mode))
	}
	return true
}

func (p *packing) skip(e *tar.Entry, err error) {
	reason := err.Error()
	if err == syscall.ENOENT {
		reason = "it vanished meanwhile"
	}
	p.sum.skip(e.Name, reason)
}

// directory adds a directory and descends into it.
func (p *packing) directory(name int, e *tar.Entry) {
	if p.exclude.MatchLast(e.Name, true) { // for a file system that lists no types
		return
	}
	if len(p.levels) > maxDepth {
		p.sum.skip(e.Name, "it lies deeper than "+strconv.Itoa(maxDepth)+" directories")
		return
	}
	fd, err := reopen(name, syscall.O_RDONLY|syscall.O_DIRECTORY)
	if err != nil {
		p.skip(e, err)
		return
	}
	e.Type = tar.Directory
	p.buffer = tar.Append(p.buffer, e)
	p.sum.Directories++
	p.descend(fd, e.Name)
}

func (p *packing) link(here *level, d *linux.Dirent, e *tar.Entry) {
	target, err := linux.Readlinkat(here.fd, d.Name)
	if err != nil {
		p.skip(e, err)
		return
	}
	e.Type, e.Link, e.Mode = tar.Link, target, 0o777
	p.buffer = tar.Append(p.buffer, e)
	p.sum.Links++
}

// reopen opens the file of an O_PATH fd: the examined file, and never one that took its place.
func reopen(name, flags int) (int, error) {
	return files.Reopen(name, flags|syscall.O_NONBLOCK|syscall.O_NOCTTY)
}

// file puts a file's header and, if it is small, its content into the buffer.
func (p *packing) file(name int, st *syscall.Stat_t, e *tar.Entry) bool {
	e.Type = tar.File
	if first, found := p.again(st, e.Name); found {
		e.Type, e.Link = tar.HardLink, first
		p.buffer = tar.Append(p.buffer, e)
		p.sum.Files++
		return true
	}
	room := int64(cap(p.buffer)-p.room) - int64(tar.Room(e)) - 5*tar.Block
	small := st.Size < room
	if small && tar.Padded(st.Size)+int64(tar.Room(e))+2*tar.Block > int64(p.free()) {
		return false
	}
	fd, err := reopen(name, syscall.O_RDONLY)
	if err != nil {
		p.skip(e, err)
		return true
	}
	if !small {
		e.Size = st.Size
		p.buffer = tar.Append(p.buffer, e)
		p.large = &source{e.Name, fd, st.Size}
		p.remember(st, e.Name)
		return true
	}
	if p.small(fd, e) {
		p.remember(st, e.Name)
	}
	_ = syscall.Close(fd)
	return true
}

// small reads a file completely before writing its size. A file that has outgrown the buffer is cut: it had that size a
// moment ago.
func (p *packing) small(fd int, e *tar.Entry) bool {
	head := len(p.buffer) + tar.Room(e)
	free := p.buffer[head : cap(p.buffer)-2*tar.Block]
	size := 0
	for size < len(free) {
		n, err := syscall.Read(fd, free[size:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			p.skip(e, err)
			return false
		}
		if n <= 0 {
			break
		}
		size += n
	}
	e.Size = int64(size)
	content := free[:size]
	p.buffer = tar.Append(p.buffer, e)
	p.buffer = append(p.buffer, content...) // moves forward within one buffer: the header never exceeds its reserved space
	p.buffer = append(p.buffer, make([]byte, tar.Padded(e.Size)-e.Size)...)
	p.sum.Files++
	p.sum.Bytes += e.Size
	return true
}

// again returns the name under which the archive already has a file.
func (p *packing) again(st *syscall.Stat_t, name string) (string, bool) {
	if st.Nlink < 2 {
		return "", false
	}
	first, found := p.linked[inode{st.Dev, st.Ino}]
	return first, found && first != name
}

func (p *packing) remember(st *syscall.Stat_t, name string) {
	if st.Nlink > 1 && len(p.linked) < maxLinked && len(name) < 1024 {
		p.linked[inode{st.Dev, st.Ino}] = strings.Clone(name)
	}
}
