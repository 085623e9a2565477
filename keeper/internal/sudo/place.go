package sudo

import (
	"os"
	"strconv"
	"strings"
	"syscall"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/spawn"
)

const (
	ownLink    = "/run/skerry/bin/sudo"
	commonLink = "/usr/local/bin/sudo"
	backlog    = 64
)

// Open makes the socket and the links, or renews the rules of an open door.
func (d *Door) Open(rules Rules) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rules = rules
	if d.listener != nil {
		return nil
	}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	_ = syscall.Unlink(Socket)
	if err = syscall.Bind(fd, &syscall.SockaddrUnix{Name: Socket}); err == nil {
		if err = syscall.Chmod(Socket, 0o666); err == nil {
			err = syscall.Listen(fd, backlog)
		}
	}
	if err != nil {
		_ = syscall.Close(fd)
		return err
	}
	d.listener = os.NewFile(uintptr(fd), "sudo")
	_ = os.Symlink("skerry-keeper", ownLink)
	_ = os.Symlink(ownLink, commonLink) // a login shell's PATH may lack ours
	go d.accept(d.listener)
	return nil
}

// Close takes the socket and our links away; what runs goes on.
func (d *Door) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = syscall.Unlink(Socket)
	if target, err := os.Readlink(commonLink); err == nil && target == ownLink {
		_ = syscall.Unlink(commonLink)
	}
	_ = syscall.Unlink(ownLink)
	if d.listener != nil {
		_ = d.listener.Close()
		d.listener = nil
	}
}

// environmentOf layers: the user's own, the sandbox's, what the caller kept or set, and who the caller is.
func environmentOf(u *accounts.User, rules Rules, r *spawn.Request, peer *syscall.Ucred) (env []string, search string) {
	all := u.Environment()
	for name, value := range rules.Env {
		if _, own := all[name]; !own || name == "PATH" {
			all[name] = value
		}
	}
	for _, entry := range r.Env {
		if name, value, ok := strings.Cut(entry, "="); ok && name != "" {
			all[name] = value
		}
	}
	caller := strconv.FormatUint(uint64(peer.Uid), 10)
	all["SUDO_UID"], all["SUDO_GID"] = caller, strconv.FormatUint(uint64(peer.Gid), 10)
	all["SUDO_USER"] = caller
	if found, err := accounts.Find(caller); err == nil {
		all["SUDO_USER"] = found.Name
	}
	all["SUDO_COMMAND"] = strings.Join(r.Argv, " ")
	for name, value := range all {
		env = append(env, name+"="+value)
	}
	return env, all["PATH"]
}
