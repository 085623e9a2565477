package sudo

import (
	"os"
	"strconv"
	"strings"
	"syscall"

	"skerry/keeper/internal/accounts"
	"skerry/keeper/internal/launchproto"
)

const (
	keeperLink = "/run/skerry/bin/sudo"
	localLink  = "/usr/local/bin/sudo"
	backlog    = 64
)

// Open makes the socket and the links, or updates the rules of an open server.
func (s *Server) Open(rules Rules) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = rules
	if s.listener != nil {
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
	s.listener = os.NewFile(uintptr(fd), "sudo")
	_ = os.Symlink("skerry-keeper", keeperLink)
	_ = os.Symlink(keeperLink, localLink) // the PATH of a login shell may lack /run/skerry/bin
	go s.accept(s.listener)
	return nil
}

// Close removes the socket and the links; running commands continue.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = syscall.Unlink(Socket)
	if target, err := os.Readlink(localLink); err == nil && target == keeperLink {
		_ = syscall.Unlink(localLink)
	}
	_ = syscall.Unlink(keeperLink)
	if s.listener != nil {
		_ = s.listener.Close()
		s.listener = nil
	}
}

// environmentOf combines, in this order: the user's own variables, the sandbox's, those of the caller, and the caller's
// identity.
func environmentOf(u *accounts.User, rules Rules, r *launchproto.Request, peer *syscall.Ucred) (env []string, search string) {
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
