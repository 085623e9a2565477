package accounts

import "strings"

// Owner parses "user", "user:group" or ":group", with names or numbers. The default group is that of the user; -1 keeps
// an ID.
func Owner(text string) (uid, gid int, err error) {
	name, group, both := strings.Cut(text, ":")
	uid, gid = -1, -1
	if name != "" {
		user, err := Find(name)
		if err != nil {
			return 0, 0, err
		}
		uid, gid = int(user.UID), int(user.GID)
	}
	if both {
		number, ok := findGroup(group)
		if !ok {
			return 0, 0, ErrUnknown
		}
		gid = int(number)
	}
	if uid < 0 && gid < 0 {
		return 0, 0, ErrUnknown
	}
	return uid, gid, nil
}

func findGroup(name string) (gid uint32, ok bool) {
	if name == "" || len(name) > 256 {
		return 0, false
	}
	eachLine("/etc/group", 4, func(f []string) bool {
		if f[0] == name {
			gid, ok = id(f[2])
		}
		return !ok
	})
	if !ok {
		gid, ok = id(name)
	}
	return gid, ok
}
