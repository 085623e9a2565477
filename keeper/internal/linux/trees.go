package linux

import (
	"strings"
	"syscall"
	"unsafe"
)

const (
	resolveNoMount = 0x01
	resolveNoLinks = 0x04
	resolveBeneath = 0x08
	atFollow       = 0x400
	maxPath        = 4000 // the kernel accepts 4095 bytes of a path
)

// OpenIn opens a path below a directory and never leaves it: it follows no links, not even the last. The path may be
// longer than the kernel accepts at once.
func OpenIn(dir int, path string, flags int) (int, error) { return openIn(dir, path, flags, 0) }

// OpenInside is OpenIn without entering mounts.
func OpenInside(dir int, path string, flags int) (int, error) {
	return openIn(dir, path, flags, resolveNoMount)
}

// OpenUnlinked opens an absolute path without following links.
func OpenUnlinked(path string, flags int) (int, error) {
	return openat2(atFdCwd, path, flags, 0, resolveNoMagic|resolveNoLinks)
}

// openIn opens a long path in several steps, each of which stays beneath the previous one.
func openIn(dir int, path string, flags int, more uint64) (int, error) {
	from := dir
	for {
		part, rest := path, ""
		if len(path) > maxPath {
			cut := strings.LastIndexByte(path[:maxPath], '/')
			if cut <= 0 {
				return -1, syscall.ENAMETOOLONG
			}
			part, rest = path[:cut], path[cut+1:]
		}
		wanted := flags
		if rest != "" {
			wanted = OPath | syscall.O_DIRECTORY
		}
		fd, err := openat2(from, part, wanted, 0, resolveNoMagic|resolveNoLinks|resolveBeneath|more)
		if from != dir {
			_ = syscall.Close(from)
		}
		if err != nil || rest == "" {
			return fd, err
		}
		from, path = fd, rest
	}
}

// Symlinkat makes a symbolic link.
func Symlinkat(target string, dir int, name string) error {
	t, err := syscall.BytePtrFromString(target)
	if err != nil {
		return err
	}
	n, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, e := syscall.Syscall(syscall.SYS_SYMLINKAT, uintptr(unsafe.Pointer(t)), uintptr(dir), uintptr(unsafe.Pointer(n)))
	return orNil(e)
}

// Linkat makes a hard link. It does not follow a link.
func Linkat(oldDir int, oldName string, dir int, name string) error {
	o, err := syscall.BytePtrFromString(oldName)
	if err != nil {
		return err
	}
	n, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, e := syscall.Syscall6(syscall.SYS_LINKAT, uintptr(oldDir), uintptr(unsafe.Pointer(o)), uintptr(dir),
		uintptr(unsafe.Pointer(n)), 0, 0)
	return orNil(e)
}

// SetTimes sets the mtime of an entry, or of the fd itself if name is "". It does not follow a link.
func SetTimes(dir int, name string, nanos int64) error {
	times := [2]syscall.Timespec{syscall.NsecToTimespec(nanos), syscall.NsecToTimespec(nanos)}
	var path unsafe.Pointer
	flags := uintptr(0)
	if name != "" {
		p, err := syscall.BytePtrFromString(name)
		if err != nil {
			return err
		}
		path, flags = unsafe.Pointer(p), atSymlinkNoFollow
	}
	_, _, e := syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(dir), uintptr(path), uintptr(unsafe.Pointer(&times)), flags, 0, 0)
	return orNil(e)
}

func orNil(e syscall.Errno) error {
	if e != 0 {
		return e
	}
	return nil
}

// Dirent is one entry of a directory, with its type if the file system provides it (syscall.DT_…).
type Dirent struct {
	Name string
	Type byte
}

// Dirents reads a directory piece by piece through its own buffer.
type Dirents struct {
	fd     int
	buffer []byte
	rest   []byte
}

// NewDirents reads the directory of an fd from its start; the caller keeps the fd.
//
// The rewind matters: btrfs lists the entries that existed when the directory was opened or last rewound. A caller that
// opens a directory, watches it and then lists it would otherwise miss an entry that was created between the first two
// steps: the list would not contain it, and no notice would follow.
func NewDirents(fd int) *Dirents {
	_, _ = syscall.Seek(fd, 0, 0) // an fd that cannot be rewound is no directory, which Next reports
	return &Dirents{fd: fd, buffer: make([]byte, 8<<10)}
}

// Next returns the next entry except "." and "..", or nil at the end.
func (d *Dirents) Next() (*Dirent, error) {
	const nameAt, lengthAt, typeAt = 19, 16, 18
	for {
		if len(d.rest) == 0 {
			n, err := syscall.ReadDirent(d.fd, d.buffer)
			if err == syscall.EINTR {
				continue
			}
			if err != nil || n <= 0 {
				return nil, err
			}
			d.rest = d.buffer[:n]
		}
		length := int(*(*uint16)(unsafe.Pointer(&d.rest[lengthAt])))
		record := d.rest[:length]
		d.rest = d.rest[length:]
		name := record[nameAt:]
		if end := strings.IndexByte(unsafe.String(&name[0], len(name)), 0); end >= 0 {
			name = name[:end]
		}
		if s := string(name); s != "." && s != ".." {
			return &Dirent{s, record[typeAt]}, nil
		}
	}
}
