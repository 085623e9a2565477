package sftp

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"skerry/keeper/internal/accounts"
)

func number(n uint64) string { return strconv.FormatUint(n, 10) }

func (s *server) opendir(id uint32, in *input) (output, error) {
	name, err := path(in)
	if in.bad || err != nil {
		return nil, err
	}
	file, err := os.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return s.add(&handle{file: file, dir: true}, id)
}

// readdir returns the next entries. A name that vanished after the listing is left out.
func (s *server) readdir(id uint32, in *input) (output, error) {
	h, err := s.find(in.text(), true)
	if in.bad || err != nil {
		return nil, err
	}
	answer, count := reply(msgName, id).uint32(0), uint32(0)
	if !h.listed {
		h.listed = true
		for _, dots := range []string{".", ".."} {
			answer, count = entry(h, dots, answer, count)
		}
	}
	for len(answer) < nameBytes {
		if len(h.names) == 0 {
			if h.names, err = h.file.ReadDir(256); len(h.names) == 0 {
				break
			}
		}
		answer, count = entry(h, h.names[0].Name(), answer, count)
		h.names = h.names[1:]
	}
	if count == 0 {
		if err == nil {
			err = io.EOF
		}
		return nil, err
	}
	binary.BigEndian.PutUint32(answer[9:], count)
	return answer, nil
}

func entry(h *handle, name string, answer output, count uint32) (output, uint32) {
	var st syscall.Stat_t
	if syscall.Lstat(filepath.Join(h.file.Name(), name), &st) != nil {
		return answer, count
	}
	return answer.text(name).text(longName(name, &st)).attributes(attributesOf(&st)), count + 1
}

// extended executes the extensions that `version` announces.
func (s *server) extended(id uint32, kind string, in *input) (output, error) {
	switch kind {
	case "limits@openssh.com":
		return reply(msgReply, id).uint64(maxPacket).uint64(maxData).uint64(maxData).uint64(maxHandles), nil
	case "fsync@openssh.com":
		h, err := s.find(in.text(), false)
		if in.bad || err != nil {
			return nil, err
		}
		return nil, h.file.Sync()
	case "fstatvfs@openssh.com":
		h := s.handles[in.text()]
		if in.bad || h == nil {
			return nil, errHandle
		}
		var st syscall.Statfs_t
		err := syscall.Fstatfs(int(h.file.Fd()), &st)
		return volume(id, &st), err
	}
	name, err := path(in)
	if in.bad || err != nil {
		return nil, err
	}
	switch kind {
	case "posix-rename@openssh.com", "hardlink@openssh.com":
		second, err := path(in)
		if in.bad || err != nil {
			return nil, err
		}
		if kind == "hardlink@openssh.com" {
			return nil, syscall.Link(name, second)
		}
		return nil, syscall.Rename(name, second)
	case "statvfs@openssh.com":
		var st syscall.Statfs_t
		err := syscall.Statfs(name, &st)
		return volume(id, &st), err
	case "lsetstat@openssh.com":
		return nil, touchLink(name, in)
	case "expand-path@openssh.com":
		expanded, err := expand(name)
		if err != nil {
			return nil, err
		}
		return realpath(id, expanded)
	}
	return nil, errUnsupported
}

func volume(id uint32, st *syscall.Statfs_t) output {
	flags := uint64(st.Flags) & (syscall.MS_RDONLY | syscall.MS_NOSUID)
	return reply(msgReply, id).uint64(uint64(st.Bsize)).uint64(uint64(st.Frsize)).uint64(st.Blocks).uint64(st.Bfree).
		uint64(st.Bavail).uint64(st.Files).uint64(st.Ffree).uint64(st.Ffree).uint64(uint64(uint32(st.Fsid.X__val[0]))).
		uint64(flags).uint64(uint64(st.Namelen))
}

// expand replaces `~` and `~user` at the start of a path.
func expand(name string) (string, error) {
	if !strings.HasPrefix(name, "~") {
		return name, nil
	}
	user, rest, _ := strings.Cut(name[1:], "/")
	if user == "" {
		if home := os.Getenv("HOME"); home != "" {
			return filepath.Join(home, rest), nil
		}
		user = strconv.Itoa(os.Getuid())
	}
	found, err := accounts.Find(user)
	if err != nil {
		return "", syscall.ENOENT
	}
	return filepath.Join(found.Home, rest), nil
}
