package launcher

import (
	"path/filepath"
	"strings"
	"syscall"

	"skerry/keeper/internal/launchproto"
)

// fork starts the command, as a sibling if requested: then the keeper is its parent. It uses syscall.ForkExec rather
// than os.StartProcess: no pidfd, and no clone3, which the sandbox's seccomp profile answers with ENOSYS.
func fork(r *launchproto.Request, fds []int, sibling bool) (int, syscall.Errno) {
	if len(fds) < 3 || len(fds) > 4 || len(r.Argv) == 0 {
		return 0, syscall.EINVAL
	}
	limit(syscall.RLIMIT_NOFILE, uint64(r.OpenFiles))
	limit(rlimitNproc, uint64(r.Processes))
	files := make([]uintptr, len(fds))
	for i, fd := range fds {
		files[i] = uintptr(fd)
	}
	attr := &syscall.ProcAttr{
		Dir:   r.Dir,
		Env:   r.Env,
		Files: files,
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			Setctty:    r.Terminal == 1, // Ctty is 0: stdin
			Credential: &syscall.Credential{Uid: r.UID, Gid: r.GID, Groups: r.Groups},
		},
	}
	if sibling {
		attr.Sys.Cloneflags = syscall.CLONE_PARENT
	}
	return execute(r, attr)
}

// execute tries candidates like execvp: the kernel decides, with the user's rights, whether one can be executed.
func execute(r *launchproto.Request, attr *syscall.ProcAttr) (int, syscall.Errno) {
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

// candidates lists the files that a bare program name may mean. Relative directories of the search path count from the
// command's directory.
func candidates(r *launchproto.Request) []string {
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

const rlimitNproc = 6

// limit sets the soft and hard limit of this process for its children to inherit; 0 keeps it. Setting RLIMIT_NOFILE
// explicitly also stops Go from giving children the limit that it found at its start.
func limit(resource int, n uint64) {
	var now syscall.Rlimit
	if n == 0 || syscall.Getrlimit(resource, &now) != nil {
		return
	}
	n = min(n, now.Max)
	if now.Cur != n || now.Max != n || resource == syscall.RLIMIT_NOFILE {
		_ = syscall.Setrlimit(resource, &syscall.Rlimit{Cur: n, Max: n})
	}
}
