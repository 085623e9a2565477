package tree

import (
	"strings"
	"syscall"

	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/tar"
	"skerry/keeper/internal/tempname"
)

const umask = 0o022 // the keeper's umask

// part is a file being written: under a temporary name or, if the name is free and the content is in memory, in place.
type part struct {
	u     *unpacking
	entry *tar.Entry
	dir   int // owned by the unpacking
	name  string
	temp  string // name until it is complete
	fd    int
}

func (u *unpacking) begin(e *tar.Entry) (*part, error) {
	if err := u.leave(e.Name); err != nil {
		return nil, err
	}
	dir, name, err := u.enter(e.Name)
	if err != nil {
		return nil, err
	}
	return &part{u: u, entry: e, dir: dir, name: name}, nil
}

// open makes the file under its temporary name.
func (p *part) open() (err error) {
	const flags = syscall.O_WRONLY | syscall.O_CREAT | syscall.O_EXCL | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	p.fd, err = syscall.Openat(p.dir, p.temp, flags, p.entry.Mode&0o777&^umask|0o200)
	return err
}

// make makes a file whose content is in memory. A free name is written in place, which takes half the time: no failure
// of others can come between the first byte and the last.
func (p *part) make(content []byte) error {
	p.temp = p.name
	err := p.open()
	if err == syscall.EEXIST {
		p.temp = tempname.Name()
		err = p.open()
	}
	if err != nil {
		return err
	}
	if err := p.write(content); err != nil {
		p.discard()
		return err
	}
	return p.settle()
}

func (p *part) write(b []byte) error {
	for len(b) > 0 {
		n, err := syscall.Write(p.fd, b)
		if err != nil && err != syscall.EINTR {
			return err
		}
		b = b[max(n, 0):]
	}
	return nil
}

// settle moves the complete file into place.
func (p *part) settle() error {
	err := p.dress()
	if err == nil && p.temp != p.name {
		err = syscall.Renameat(p.dir, p.temp, p.dir, p.name)
	}
	if err != nil {
		p.discard()
		return err
	}
	p.u.sum.Files++
	p.u.sum.Bytes += p.entry.Size
	return syscall.Close(p.fd)
}

// dress sets the mode and time. If root replaces a user's file, the user stays its owner.
func (p *part) dress() error {
	if p.u.user.UID == 0 && p.temp != p.name {
		var old syscall.Stat_t
		if linux.Lstatat(p.dir, p.name, &old) == nil && (old.Uid != 0 || old.Gid != 0) {
			if err := syscall.Fchown(p.fd, int(old.Uid), int(old.Gid)); err != nil {
				return err
			}
		}
	}
	if wanted := p.entry.Mode & keptBits; wanted != wanted&0o777&^umask|0o200 {
		if err := syscall.Fchmod(p.fd, wanted); err != nil {
			return err
		}
	}
	return linux.SetTimes(p.fd, "", p.entry.Mtime)
}

func (p *part) discard() {
	_ = syscall.Close(p.fd)
	_ = linux.Unlinkat(p.dir, p.temp, 0)
}

// link makes a symbolic link in one step, also over an existing entry.
func (u *unpacking) link(e *tar.Entry) error {
	dir, name, err := u.enter(e.Name)
	if err != nil {
		return err
	}
	err = linux.Symlinkat(e.Link, dir, name)
	if err == syscall.EEXIST {
		err = replace(dir, name, func(temp string) error { return linux.Symlinkat(e.Link, dir, temp) })
	}
	if err != nil {
		return err
	}
	u.sum.Links++
	return linux.SetTimes(dir, name, e.Mtime)
}

// hardLink gives a file of the tree a second name. It cannot reach anything outside the tree.
func (u *unpacking) hardLink(e *tar.Entry) error {
	above, base := "", e.Link
	if cut := strings.LastIndexByte(base, '/'); cut >= 0 {
		above, base = base[:cut], base[cut+1:]
	}
	from := u.root
	if above != "" {
		fd, err := linux.OpenIn(u.root, above, linux.OPath|syscall.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer func() { _ = syscall.Close(fd) }()
		from = fd
	}
	dir, name, err := u.enter(e.Name)
	if err != nil {
		return err
	}
	err = linux.Linkat(from, base, dir, name)
	if err == syscall.EEXIST && e.Link != e.Name {
		err = replace(dir, name, func(temp string) error { return linux.Linkat(from, base, dir, temp) })
	}
	if err == nil {
		u.sum.Files++
	}
	return err
}

func replace(dir int, name string, make func(string) error) error {
	temp := tempname.Name()
	if err := make(temp); err != nil {
		return err
	}
	err := syscall.Renameat(dir, temp, dir, name)
	_ = linux.Unlinkat(dir, temp, 0) // renaming a file over itself leaves both names
	return err
}
