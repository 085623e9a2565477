package files

import (
	"syscall"

	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/tempname"
)

// treeCopy copies a directory to a temporary one beside the target, which it then renames.
type treeCopy struct {
	*copying
	from tree
	to   descent
	dir  int // directory of the target
	name string
	temp string
	root syscall.Stat_t // the temporary directory

	in, out int            // the file being copied
	st      syscall.Stat_t // and its description
}

// tree copies a directory; after a failure it removes the temporary one.
func (c *copying) tree(to string) (info *Info, err error) {
	t := &treeCopy{copying: c, dir: -1, in: -1, out: -1}
	defer t.close()
	err = asuser.Do(c.fs.User, func() error { return t.begin(to) })
	if err == nil {
		err = t.all()
	}
	if err == nil {
		err = asuser.Do(c.fs.User, func() error {
			if err := linux.Rename(t.dir, t.temp, t.dir, t.name, c.options.flags()); err != nil {
				return target(err)
			}
			info, err = describe(t.dir, t.name)
			return err
		})
	}
	if err != nil && t.temp != "" {
		quiet := &UserFS{User: c.fs.User, Cwd: c.fs.Cwd} // without heartbeat: clean up even if the host has hung up
		_ = quiet.removeTree(t.dir, t.temp)
	}
	return info, err
}

func (t *treeCopy) close() {
	t.from.close()
	t.to.close()
	closeAll(t.dir, t.in, t.out)
}

// begin makes the temporary directory beside the target and opens both trees.
func (t *treeCopy) begin(to string) (err error) {
	if err := t.checkFree(to); err != nil {
		return target(err)
	}
	if t.dir, t.name, err = t.fs.place(to, t.options.Parents); err != nil {
		return target(err)
	}
	if special(t.name) {
		return target(syscall.EEXIST)
	}
	if occupied(t.dir, t.name) { // fail before copying everything in vain
		return target(syscall.ENOTEMPTY)
	}
	temp := tempname.Name()
	if err := syscall.Mkdirat(t.dir, temp, 0o700); err != nil {
		return target(err)
	}
	t.temp = temp
	fd, err := syscall.Openat(t.dir, temp, directoryFlags, 0)
	if err != nil {
		return err
	}
	if err := syscall.Fstat(fd, &t.root); err != nil || t.root.Uid != t.fs.User.UID || t.root.Mode&0o777 != 0o700 {
		closeAll(fd)
		return syscall.ESTALE // not the directory made above
	}
	if err := t.to.begin(fd); err != nil {
		return err
	}
	t.from.entry, t.from.onEnter, t.from.onLeave, t.from.afterLeave = t.entry, t.onEnter, t.onLeave, t.afterLeave
	source := t.source
	t.source = -1
	return t.from.begin(source)
}

func occupied(dir int, name string) bool {
	fd, err := syscall.Openat(dir, name, directoryFlags, 0)
	if err != nil {
		return false
	}
	defer closeAll(fd)
	entry, _ := linux.NewDirents(fd).Next()
	return entry != nil
}

// all copies entry by entry. It moves bytes without the user's rights, which only opening needs.
func (t *treeCopy) all() error {
	for {
		v, err := t.fs.runSteps(t.step)
		if err != nil || v == done {
			return err
		}
		if err := t.fs.copyBytes(t.in, t.out, t.st.Size); err != nil {
			return err
		}
	}
}

func (t *treeCopy) step() (verdict, error) {
	if t.out >= 0 {
		err := t.finish(t.out, &t.st)
		closeAll(t.in, t.out)
		if t.in, t.out = -1, -1; err != nil {
			return proceed, err
		}
	}
	return t.from.step()
}

// entry copies one entry, or pauses the walk to copy the bytes of a file.
func (t *treeCopy) entry(dir int, e *linux.Dirent) (verdict, error) {
	fd, err := syscall.Openat(dir, e.Name, linux.OPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err == syscall.ENOENT {
		return proceed, nil
	}
	if err != nil {
		return proceed, err
	}
	if err := syscall.Fstat(fd, &t.st); err != nil {
		closeAll(fd)
		return proceed, err
	}
	switch kind(t.st.Mode) {
	case "directory":
		closeAll(fd)
		if t.st.Dev == t.root.Dev && t.st.Ino == t.root.Ino {
			return proceed, syscall.EINVAL // a copy into itself
		}
		return deeper, nil
	case "file":
		return t.open(fd, e.Name)
	}
	defer closeAll(fd)
	return proceed, t.makeOther(dir, e.Name, &t.st, t.to.fd(), e.Name)
}

func (t *treeCopy) open(fd int, name string) (verdict, error) {
	in, err := openSource(fd, &t.st)
	if err != nil {
		return proceed, err
	}
	const flags = syscall.O_WRONLY | syscall.O_CREAT | syscall.O_EXCL | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	out, err := syscall.Openat(t.to.fd(), name, flags, 0o600)
	if err != nil {
		closeAll(in)
		return proceed, err
	}
	t.in, t.out = in, out
	return pause, nil
}

func (t *treeCopy) onEnter(name string) error {
	if err := syscall.Mkdirat(t.to.fd(), name, 0o700); err != nil {
		return err
	}
	return t.to.enter(name)
}

func (t *treeCopy) onLeave(fd int) error {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return err
	}
	return t.finish(t.to.fd(), &st)
}

func (t *treeCopy) afterLeave(int, string) error {
	_, err := t.to.leave()
	return err
}
