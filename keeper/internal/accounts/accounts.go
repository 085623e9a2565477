// Package accounts finds users in the sandbox's own /etc/passwd and /etc/group. Both are under the control of programs
// inside: they may be missing, huge, a FIFO or malformed, and then only root and numeric users exist.
package accounts

import (
	"errors"
	"strconv"
	"strings"
	"syscall"
)

const (
	maxGroups = 1024
	maxID     = 1<<32 - 2 // -1 means "unchanged" to the kernel
)

// ErrUnknown means that a user is neither in /etc/passwd nor a number.
var ErrUnknown = errors.New("unknown user")

// User is the identity of a command or a file operation.
type User struct {
	Name   string
	UID    uint32
	GID    uint32
	Groups []uint32
	Home   string
	Shell  string
}

// Find finds "name" or "1000", optionally with a group: "name:group" or "1000:1000", which then is the only group. The
// empty name is root.
func Find(name string) (*User, error) {
	if name == "" {
		name = "root"
	}
	if len(name) > 256 || strings.ContainsAny(name, "\x00\n") {
		return nil, ErrUnknown
	}
	if u := fromPasswd(name); u != nil {
		u.Groups = groupsOf(u.Name, u.GID)
		return u, nil
	}
	if name == "root" {
		return &User{Name: "root", Groups: []uint32{0}, Home: home("/root"), Shell: "/bin/sh"}, nil
	}
	if user, group, both := strings.Cut(name, ":"); both {
		return inGroup(user, group)
	}
	uid, ok := id(name)
	if !ok {
		return nil, ErrUnknown
	}
	u := &User{Name: strings.Clone(name), UID: uid, GID: uid, Home: "/", Shell: "/bin/sh"}
	u.Groups = groupsOf(u.Name, u.GID)
	return u, nil
}

func inGroup(user, group string) (*User, error) {
	gid, ok := groupID(group)
	if user == "" || !ok {
		return nil, ErrUnknown
	}
	u, err := Find(user)
	if err != nil {
		return nil, err
	}
	u.GID, u.Groups = gid, []uint32{gid}
	return u, nil
}

// groupID finds a group by name; a number without a matching name stands for itself.
func groupID(name string) (found uint32, ok bool) {
	if name == "" {
		return 0, false
	}
	eachLine("/etc/group", 4, func(f []string) bool {
		if g, valid := id(f[2]); valid && f[0] == name {
			found, ok = g, true
		}
		return !ok
	})
	if ok {
		return found, true
	}
	return id(name)
}

func id(text string) (uint32, bool) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n > maxID || strconv.FormatUint(n, 10) != text {
		return 0, false
	}
	return uint32(n), true
}

// fromPasswd finds a line by name or, for a number that is no line's name, by uid.
func fromPasswd(name string) *User {
	uid, isNumber := id(name)
	var byID *User
	var found *User
	eachLine("/etc/passwd", 7, func(f []string) bool {
		u := parse(f)
		if u == nil {
			return true
		}
		if u.Name == name {
			found = u
			return false
		}
		if isNumber && u.UID == uid && byID == nil {
			byID = u
		}
		return true
	})
	if found != nil {
		return found
	}
	return byID
}

func parse(f []string) *User {
	uid, ok1 := id(f[2])
	gid, ok2 := id(f[3])
	if f[0] == "" || !ok1 || !ok2 {
		return nil
	}
	// Cloned: an ended process keeps its user, and a substring would keep the whole file in memory.
	u := &User{Name: strings.Clone(f[0]), UID: uid, GID: gid, Home: strings.Clone(f[5]), Shell: strings.Clone(f[6])}
	if !strings.HasPrefix(u.Home, "/") {
		u.Home = "/"
	}
	if !strings.HasPrefix(u.Shell, "/") {
		u.Shell = "/bin/sh"
	}
	return u
}

func groupsOf(name string, gid uint32) []uint32 {
	groups := []uint32{gid}
	eachLine("/etc/group", 4, func(f []string) bool {
		g, ok := id(f[2])
		if ok && g != gid && member(f[3], name) {
			groups = append(groups, g)
		}
		return len(groups) < maxGroups
	})
	return groups
}

func member(list, name string) bool {
	for _, m := range strings.Split(list, ",") {
		if m == name {
			return true
		}
	}
	return false
}

func home(path string) string {
	var st syscall.Stat_t
	if syscall.Stat(path, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		return path
	}
	return "/"
}

// eachLine calls f with the fields of every line of the right length until f returns false.
func eachLine(path string, fields int, f func([]string) bool) {
	for line := range strings.Lines(contents(path)) {
		if parts := strings.Split(strings.TrimSuffix(line, "\n"), ":"); len(parts) == fields && !f(parts) {
			return
		}
	}
}
