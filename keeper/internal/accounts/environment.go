package accounts

const systemPath = "/run/skerry/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Environment returns the initial environment of this user's commands.
func (u *User) Environment() map[string]string {
	path := systemPath
	if u.UID != 0 && u.Home != "/" {
		path = u.Home + "/.local/bin:" + path
	}
	return map[string]string{"PATH": path, "HOME": u.Home, "USER": u.Name, "LOGNAME": u.Name, "SHELL": u.Shell}
}
