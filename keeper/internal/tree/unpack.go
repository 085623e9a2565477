package tree

import (
	"io"
	"strings"
	"syscall"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/bufpool"
	"skerry/keeper/internal/iolimit"
	"skerry/keeper/internal/tar"
	"skerry/keeper/internal/tempname"
)

// unpacking is an archive being received.
type unpacking struct {
	user    *accounts.User
	root    int
	dir     int    // directory of the last entry; -1: none
	dirName string // its name
	decoder tar.Decoder
	entry   *tar.Entry // its content is incomplete so far
	large   *part      // for an entry larger than the buffer
	leaving []leaving
	sum     Summary
}

// Unpack makes the contents of an archive below a directory and closes its fd. It replaces existing files, each in one
// step, and merges directories. It stops at the first failure; everything before that is complete.
func Unpack(user *accounts.User, root int, archive io.Reader) (*Summary, error) {
	u := &unpacking{user: user, root: root, dir: -1, sum: Summary{Skipped: []Skipped{}}}
	defer u.close()
	err := bufpool.With(func(buffer []byte) error { return u.run(archive, buffer) })
	ended := asuser.Do(user, func() error {
		if u.large != nil {
			u.large.discard()
		}
		return u.leave("")
	})
	if err == nil {
		err = ended
	}
	return &u.sum, err
}

func (u *unpacking) close() {
	for _, fd := range []int{u.root, u.dir} {
		if fd >= 0 {
			_ = syscall.Close(fd)
		}
	}
}

// run makes all complete entries of the buffer in one job, moves the rest to the front, and reads on.
func (u *unpacking) run(archive io.Reader, buffer []byte) error {
	held := 0
	for {
		used := 0
		err := asuser.Do(u.user, func() (err error) {
			used, err = u.take(buffer[:held], len(buffer))
			return err
		})
		if err != nil || u.decoder.Ended {
			return err
		}
		held = copy(buffer, buffer[used:held])
		if u.large != nil {
			if held, err = u.pass(archive, buffer, held); err != nil {
				return err
			}
			continue
		}
		n, err := archive.Read(buffer[held:])
		if held += n; n == 0 && err != nil {
			return orTruncated(err)
		}
	}
}

func orTruncated(err error) error {
	if err == io.EOF {
		return tar.Malformed("truncated")
	}
	return err
}

// take makes the complete entries in b and returns the number of bytes that they used.
func (u *unpacking) take(b []byte, room int) (used int, err error) {
	for !u.decoder.Ended {
		if u.entry == nil {
			entry, n, err := u.decoder.Next(b[used:])
			if err == tar.ErrMore {
				return used, nil
			}
			if err != nil {
				return used, err
			}
			used += n
			u.entry = entry
			continue
		}
		size := tar.Padded(u.entry.Size)
		switch {
		case size <= int64(len(b)-used):
			if err := at(u.entry.Name, u.place(u.entry, b[used:used+int(u.entry.Size)])); err != nil {
				return used, err
			}
			used += int(size)
			u.entry = nil
		case size <= int64(room):
			return used, nil
		default:
			p, err := u.begin(u.entry)
			if err == nil {
				p.temp = tempname.Name()
				err = p.open()
			}
			if err == nil {
				u.large = p
			}
			return used, at(u.entry.Name, err)
		}
	}
	return used, nil
}

// place makes one complete entry.
func (u *unpacking) place(e *tar.Entry, content []byte) error {
	if err := u.leave(e.Name); err != nil {
		return err
	}
	switch e.Type {
	case tar.Directory:
		return u.directory(e)
	case tar.Link:
		return u.link(e)
	case tar.HardLink:
		return u.hardLink(e)
	case tar.File:
		p, err := u.begin(e)
		if err != nil {
			return err
		}
		return p.make(content)
	}
	u.sum.skip(e.Name, "it is a device or a FIFO")
	return nil
}

// pass streams the content of a large file to the disk. It moves the rest of the buffer to the front and returns its
// length.
func (u *unpacking) pass(archive io.Reader, buffer []byte, held int) (rest int, err error) {
	p, e, used := u.large, u.entry, 0
	left, padding := e.Size, tar.Padded(e.Size)-e.Size
	for {
		n := int(min(left, int64(held-used)))
		if err := iolimit.Write(p.fd, buffer[used:used+n]); err != nil {
			return 0, at(e.Name, err)
		}
		left -= int64(n)
		used += n
		if skip := int(min(padding, int64(held-used))); left == 0 {
			padding -= int64(skip)
			used += skip
		}
		if left == 0 && padding == 0 {
			break
		}
		if held, err = archive.Read(buffer); held == 0 && err != nil {
			return 0, orTruncated(err)
		}
		used = 0
	}
	u.large, u.entry = nil, nil
	return copy(buffer, buffer[used:held]), at(e.Name, asuser.Do(u.user, p.settle))
}

// enter opens the directory of an entry, and makes it if the archive does not contain it.
func (u *unpacking) enter(name string) (dir int, base string, err error) {
	above, base := "", name
	if cut := strings.LastIndexByte(name, '/'); cut >= 0 {
		above, base = name[:cut], name[cut+1:]
	}
	if above == "" {
		return u.root, base, nil
	}
	if u.dir >= 0 && u.dirName == above {
		return u.dir, base, nil
	}
	fd, err := u.openDirectory(above)
	if err != nil {
		return -1, "", err
	}
	if u.dir >= 0 {
		_ = syscall.Close(u.dir)
	}
	u.dir, u.dirName = fd, above
	return fd, base, nil
}
