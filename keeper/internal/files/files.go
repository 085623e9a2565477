// Package files reads and changes the sandbox's files with the rights of one of its users. Every path resolves inside
// the sandbox, so links need no special treatment there.
//
// Paths are opened with openat2 and RESOLVE_NO_MAGICLINKS, because /proc/self is the keeper itself; the keeper's own
// files in /proc are refused. Only regular files are opened for their content, after an O_PATH fd has shown their type:
// a FIFO neither blocks nor notices.
//
// A write goes to a temporary file beside the target, which is then renamed: all or nothing. The new file keeps the
// owner and mode of the old one, and the user needs the right to write to the old one.
//
// Recursive work runs as jobs of a few hundred entries, so that other calls get their turn on the few threads, with an
// explicit stack of directory fds: no tree is too deep, no path too long. Work that changes a tree handles a
// directory's entries as they come and keeps only the names of its subdirectories, so no directory is too large.
package files

import (
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/linux"
)

// UserFS is access to files with the rights of a user.
type UserFS struct {
	Attributes bool // describe entries with their extended attributes, in stat and lists
	User       *accounts.User
	Cwd        string       // base of relative paths
	Heartbeat  func() error // called often during long work; its error ends the work
}

// Info describes one entry. Mode has the permission bits only. Path is set in listings of more than one level, relative
// to the listed directory. Names that are not UTF-8 are converted with losses; Raw then has the bytes of the path or
// the name.
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

	Attributes map[string]string `json:"attributes,omitempty"`
}

// NotRegular rejects an entry that cannot be read or replaced as a file.
type NotRegular struct{ Type string }

func (n *NotRegular) Error() string { return "it is a " + n.Type + ", not a regular file" }

// At is an error below the requested path.
type At struct {
	Path string // relative to the requested path
	Err  error
}

func (a *At) Error() string { return a.Path + ": " + a.Err.Error() }

// Unwrap returns the cause.
func (a *At) Unwrap() error { return a.Err }

// Target is an error that concerns the target of a copy or move, not the source.
type Target struct{ Err error }

func (t *Target) Error() string { return t.Err.Error() }

// Unwrap returns the cause.
func (t *Target) Unwrap() error { return t.Err }

func target(err error) error {
	if err == nil {
		return nil
	}
	return &Target{err}
}

// text returns a string that JSON can carry, and the original bytes if they differ.
func text(s string) (string, []byte) {
	if utf8.ValidString(s) {
		return s, nil
	}
	return strings.ToValidUTF8(s, "\uFFFD"), []byte(s)
}

func (fs *UserFS) absolute(path string) (string, error) {
	if path == "" || strings.Contains(path, "\x00") {
		return "", syscall.EINVAL
	}
	if strings.HasPrefix(path, "/") {
		return path, nil
	}
	return fs.Cwd + "/" + path, nil
}

// parent opens the directory of a path's last component.
func (fs *UserFS) parent(path string) (dir int, name string, err error) {
	if path, err = fs.absolute(path); err != nil {
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
	if err == nil && isOwnProcFile(fd) {
		_ = syscall.Close(fd)
		return -1, "", syscall.EACCES
	}
	return fd, name, err
}

// closeAll closes those fds that are open.
func closeAll(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = syscall.Close(fd)
		}
	}
}

// special reports whether a name cannot be created, replaced or removed.
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

// regular rejects everything without plain content: opening a FIFO or a device has side effects.
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

// isOwnProcFile reports whether an fd is one of the keeper's own files in /proc. The kernel never hides a process from
// itself, so PID 1's memory would be readable through PID 1.
func isOwnProcFile(fd int) bool {
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
