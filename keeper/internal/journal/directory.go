package journal

import (
	"path"
	"syscall"

	"skerry/keeper/internal/linux"
)

// renew opens the directory again and makes it if necessary, unless another goroutine did so meanwhile.
func (s *Store) renew(old int) {
	fd, err := makeDirectory(s.path)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.directory() != old {
		_ = syscall.Close(fd)
		return
	}
	if old < 0 {
		s.dir.Store(int32(fd))
		return
	}
	// Keep the fd number: another goroutine may be about to use it.
	_ = syscall.Dup3(fd, old, syscall.O_CLOEXEC)
	_ = syscall.Close(fd)
}

// makeDirectory opens the last two components of a path without following links and replaces other entries of their
// names: they belong to the keeper. The part before belongs to the image and may contain links.
func makeDirectory(whole string) (int, error) {
	ours, last := path.Split(whole)
	base, middle := path.Split(path.Clean(ours))
	fd, err := openBase(base)
	if err != nil {
		return -1, err
	}
	for _, one := range []struct {
		name string
		mode uint32
	}{{middle, 0o711}, {last, 0o700}} { // beside the journals lies the state of sessions, which belongs to users
		next, err := enter(fd, one.name)
		_ = syscall.Close(fd)
		if err != nil {
			return -1, err
		}
		fd = next
		_ = syscall.Fchown(fd, 0, 0)
		_ = syscall.Fchmod(fd, one.mode)
	}
	return fd, nil
}

// openDirectory opens the directory only if it exists.
func openDirectory(whole string) (int, error) {
	const flags = syscall.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	ours, last := path.Split(whole)
	base, middle := path.Split(path.Clean(ours))
	fd, err := linux.OpenBelow(base, syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	for _, name := range []string{middle, last} {
		if err != nil {
			return -1, err
		}
		above := fd
		fd, err = syscall.Openat(above, name, flags, 0)
		_ = syscall.Close(above)
	}
	return fd, err
}

func openBase(base string) (int, error) {
	const flags = syscall.O_RDONLY | syscall.O_DIRECTORY
	fd, err := linux.OpenBelow(base, flags, 0)
	for parent := base; err == syscall.ENOENT && parent != "/"; {
		// the image lacks even /var/lib
		if parent = path.Clean(parent); syscall.Mkdir(path.Dir(parent), 0o755) == nil || syscall.Mkdir(parent, 0o755) == nil {
			fd, err = linux.OpenBelow(base, flags, 0)
			continue
		}
		break
	}
	return fd, err
}

// enter opens or makes a directory and removes a link or file of its name.
func enter(dir int, name string) (int, error) {
	const flags = syscall.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	fd, err := syscall.Openat(dir, name, flags, 0)
	switch err {
	case nil:
		return fd, nil
	case syscall.ELOOP, syscall.ENOTDIR:
		_ = linux.Unlinkat(dir, name, 0)
	case syscall.ENOENT:
	default:
		return -1, err
	}
	if err := syscall.Mkdirat(dir, name, 0o700); err != nil && err != syscall.EEXIST {
		return -1, err
	}
	return syscall.Openat(dir, name, flags, 0)
}
