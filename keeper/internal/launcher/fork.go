package launcher

import (
	"path/filepath"
	"strings"
	"syscall"

	"skerry/keeper/internal/spawn"
)

// fork starts the command. syscall.ForkExec and not os.StartProcess: no pidfd, no clone3, which the sandbox's seccomp
// profile answers with ENOSYS.
func fork(r *spawn.Request, fds []int) (int, syscall.Errno) {
	if len(fds) != 3 || len(r.Argv) == 0 {
		return 0, syscall.EINVAL
	}
	if r.OpenFiles > 0 {
		limitFiles(uint64(r.OpenFiles))
	}
	attr := &syscall.ProcAttr{
		Dir:   r.Dir,
		Env:   r.Env,
		Files: []uintptr{uintptr(fds[0]), uintptr(fds[1]), uintptr(fds[2])},
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			Credential: &syscall.Credential{Uid: r.UID, Gid: r.GID, Groups: r.Groups},
		},
	}
	return execute(r, attr)
}

// execute does what execvp does: the kernel decides, with the user's own rights, whether a candidate can be run.
func execute(r *spawn.Request, attr *syscall.ProcAttr) (int, syscall.Errno) {
	worst := syscall.ENOENT
	for _, path := range candidates(r) {
		pid, err := syscall.ForkExec(path, r.Argv, attr)
		if err == nil {
			return pid, 0
		}
		errno, _ := err.(syscall.Errno)
		switch errno {
		case syscall.ENOENT, syscall.ENOTDIR:
		case syscall.EACCES, syscall.EPERM:
			worst = syscall.EACCES
		default:
			return 0, errno
		}
	}
	return 0, worst
}

func candidates(r *spawn.Request) []string {
	name := r.Argv[0]
	if strings.Contains(name, "/") {
		return []string{name}
	}
	var found []string
	for _, dir := range strings.Split(r.Path, ":") {
		path := filepath.Join(dir, name)
		if !filepath.IsAbs(path) {
			path = filepath.Join(r.Dir, path)
		}
		var st syscall.Stat_t
		if name != "" && syscall.Stat(path, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFREG {
			found = append(found, path)
		}
	}
	return found
}

// limitFiles sets the soft and the hard limit. Setting it by hand also stops Go from giving children the limit that it
// found when it started.
func limitFiles(n uint64) {
	var now syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &now) != nil {
		return
	}
	n = min(n, now.Max)
	_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n})
}
