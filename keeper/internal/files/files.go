// Package files reads and changes the sandbox's files with the rights of one of its users. Every path resolves inside;
// links are the sandbox's own business.
package files

import (
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/linux"
)

// Area is whose rights and which directory a call works with.
type Area struct {
	User  *accounts.User
	Cwd   string       // where relative paths begin
	Pulse func() error // called often during long work; its error ends the work
}

// Info is one entry. Mode has the permission bits only. Path is there in listings of more than one level: from the listed
// directory on. What is not UTF-8 is lossy, and Raw has the bytes of the path, or else of the name.
type Info struct {
	Name      string  `json:"name"`
	Path      string  `json:"path,omitempty"`
	Raw       []byte  `json:"raw,omitempty"`
	Type      string  `json:"type"`
	Size      int64   `json:"size"`
	Mode      uint32  `json:"mode"`
	UID       uint32  `json:"uid"`
	GID       uint32  `json:"gid"`
	Mtime     float64 `json:"mtime"`
	Target    *string `json:"target"`
	RawTarget []byte  `json:"raw_target,omitempty"`
}

// NotRegular is the error for what can't be read or replaced as a file.
type NotRegular struct{ Type string }

func (n *NotRegular) Error() string { return "it is a " + n.Type + ", not a regular file" }

// At is an error that was met below the path that was asked for.
type At struct {
	Path string // from there on
	Err  error
}

func (a *At) Error() string { return a.Path + ": " + a.Err.Error() }

// Unwrap gives the error itself.
func (a *At) Unwrap() error { return a.Err }

// Target is an error that has to do with where something is to go, not with what it is.
type Target struct{ Err error }

func (t *Target) Error() string { return t.Err.Error() }

// Unwrap gives the error itself.
func (t *Target) Unwrap() error { return t.Err }

func target(err error) error {
	if err == nil {
		return nil
	}
	return &Target{err}
}

// text gives what JSON can carry, and the bytes where that is not the same.
func text(s string) (string, []byte) {
	if utf8.ValidString(s) {
		return s, nil
	}
	return strings.ToValidUTF8(s, "\uFFFD"), []byte(s)
}

func (a *Area) absolute(path string) (string, error) {
	if path == "" || strings.Contains(path, "\x00") {
		return "", syscall.EINVAL
	}
	if strings.HasPrefix(path, "/") {
		return path, nil
	}
	return a.Cwd + "/" + path, nil
}

// parent opens the directory that holds a path's last component.
func (a *Area) parent(path string) (dir int, name string, err error) {
	if path, err = a.absolute(path); err != nil {
		return -1, "", err
	}
	trimmed := strings.TrimRight(path, "/")
	cut := strings.LastIndexByte(trimmed, '/')
	if cut < 0 {
		return openDir("/", ".")
	}
	return openDir(trimmed[:cut+1], trimmed[cut+1:])
}

func openDir(path, name string) (int, string, error) {
	fd, err := linux.OpenBelow(path, linux.OPath|syscall.O_DIRECTORY, 0)
	if err == nil && ourOwn(fd) {
		_ = syscall.Close(fd)
		return -1, "", syscall.EACCES
	}
	return fd, name, err
}

// closeAll closes what was opened of some fds.
func closeAll(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = syscall.Close(fd)
		}
	}
}

// special says that a name can't be made, replaced or removed.
func special(name string) bool { return name == "" || name == "." || name == ".." }

func kind(mode uint32) string {
	switch mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		return "file"
	case syscall.S_IFDIR:
		return "directory"
	case syscall.S_IFLNK:
		return "link"
	case syscall.S_IFIFO:
		return "fifo"
	case syscall.S_IFSOCK:
		return "socket"
	case syscall.S_IFCHR, syscall.S_IFBLK:
		return "device"
	}
	return "other"
}

// regular refuses everything that has no plain content: opening a FIFO or a device has effects of its own.
func regular(st *syscall.Stat_t) error {
	switch t := kind(st.Mode); t {
	case "file":
		return nil
	case "directory":
		return syscall.EISDIR
	default:
		return &NotRegular{t}
	}
}

func describe(dir int, name string) (*Info, error) {
	var st syscall.Stat_t
	if err := linux.Lstatat(dir, name, &st); err != nil {
		return nil, err
	}
	i := newInfo(name, &st)
	if i.Type == "link" {
		if target, err := linux.Readlinkat(dir, name); err == nil {
			target, i.RawTarget = text(target)
			i.Target = &target
		}
	}
	return i, nil
}

func newInfo(name string, st *syscall.Stat_t) *Info {
	i := &Info{
		Type: kind(st.Mode), Size: st.Size, Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid,
		Mtime: float64(st.Mtim.Nano()) / 1e9,
	}
	i.Name, i.Raw = text(name)
	return i
}

// ourOwn says whether an fd is one of this process's own files in /proc. The kernel never hides a process from itself,
// so PID 1's memory would be readable through PID 1.
func ourOwn(fd int) bool {
	if !linux.OnProc(fd) {
		return false
	}
	path, err := linux.Readlinkat(fdDir, strconv.Itoa(fd))
	if err != nil {
		return true
	}
	rest, found := strings.CutPrefix(path, "/proc/")
	if !found {
		return path != "/proc"
	}
	number, _, _ := strings.Cut(rest, "/")
	if _, err := strconv.Atoi(number); err != nil {
		return false
	}
	return syscall.Access("/proc/self/task/"+number, 0) == nil // threads have names in /proc too
}
