package files

import (
	"syscall"

	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/rights"
	"skerry/keeper/internal/temporary"
)

// treeCopy is a directory on its way: a temporary one beside the target, until it takes its place.
type treeCopy struct {
	*copying
	from tree
	to   descent
	dir  int // where the target is to be
	name string
	temp string
	root syscall.Stat_t // the temporary directory

	in, out int            // a file whose bytes are to be copied
	st      syscall.Stat_t // and what it is
}

func (c *copying) tree(to string) (info *Info, err error) {
	t := &treeCopy{copying: c, dir: -1, in: -1, out: -1}
	defer t.close()
	err = rights.Do(c.area.User, func() error { return t.begin(to) })
	if err == nil {
		err = t.all()
	}
	if err == nil {
		err = rights.Do(c.area.User, func() error {
			if err := linux.Rename(t.dir, t.temp, t.dir, t.name, c.options.flags()); err != nil {
				return target(err)
			}
			info, err = describe(t.dir, t.name)
			return err
		})
	}
	if err != nil && t.temp != "" {
		quiet := &Area{User: c.area.User, Cwd: c.area.Cwd} // also when nobody waits any more
		_ = quiet.removeTree(t.dir, t.temp)
	}
	return info, err
}

func (t *treeCopy) close() {
	t.from.close()
	t.to.close()
	closeAll(t.dir, t.in, t.out)
}

func (t *treeCopy) begin(to string) (err error) {
	if err := t.free(to); err != nil {
		return target(err)
	}
	if t.dir, t.name, err = t.area.place(to, t.options.Parents); err != nil {
		return target(err)
	}
	if special(t.name) {
		return target(syscall.EEXIST)
	}
	if occupied(t.dir, t.name) { // said before all is copied in vain
		return target(syscall.ENOTEMPTY)
	}
	temp := temporary.Name()
	if err := syscall.Mkdirat(t.dir, temp, 0o700); err != nil {
		return target(err)
	}
	t.temp = temp
	fd, err := syscall.Openat(t.dir, temp, directoryFlags, 0)
	if err != nil {
		return err
	}
	if err := syscall.Fstat(fd, &t.root); err != nil || t.root.Uid != t.area.User.UID || t.root.Mode&0o777 != 0o700 {
		closeAll(fd)
		return syscall.ESTALE // it is not the one that we made
	}
	if err := t.to.begin(fd); err != nil {
		return err
	}
	t.from.entry, t.from.begun, t.from.ending, t.from.left = t.entry, t.begun, t.ending, t.left
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

// all copies entry by entry; bytes are moved without the user's rights, which only opening needs.
func (t *treeCopy) all() error {
	for {
		v, err := t.area.inSteps(t.step)
		if err != nil || v == done {
			return err
		}
		if err := t.area.copyBytes(t.in, t.out, t.st.Size); err != nil {
			return err
		}
	}
}

func (t *treeCopy) step() (verdict, error) {
	if t.out >= 0 {
		err := t.finish(t.out, &t.st)
		closeAll(t.in, t.out)
		if t.in, t.out = -1, -1; err != nil {
			return goOn, err
		}
	}
	return t.from.step()
}

func (t *treeCopy) entry(dir int, e *linux.Dirent) (verdict, error) {
	fd, err := syscall.Openat(dir, e.Name, linux.OPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err == syscall.ENOENT {
		return goOn, nil
	}
	if err != nil {
		return goOn, err
	}
	if err := syscall.Fstat(fd, &t.st); err != nil {
		closeAll(fd)
		return goOn, err
	}
	switch kind(t.st.Mode) {
	case "directory":
		closeAll(fd)
		if t.st.Dev == t.root.Dev && t.st.Ino == t.root.Ino {
			return goOn, syscall.EINVAL // into itself
		}
		return deeper, nil
	case "file":
		return t.open(fd, e.Name)
	}
	defer closeAll(fd)
	return goOn, t.makeOther(dir, e.Name, &t.st, t.to.fd(), e.Name)
}

func (t *treeCopy) open(fd int, name string) (verdict, error) {
	in, err := opened(fd, &t.st)
	if err != nil {
		return goOn, err
	}
	const flags = syscall.O_WRONLY | syscall.O_CREAT | syscall.O_EXCL | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	out, err := syscall.Openat(t.to.fd(), name, flags, 0o600)
	if err != nil {
		closeAll(in)
		return goOn, err
	}
	t.in, t.out = in, out
	return pause, nil
}

func (t *treeCopy) begun(name string) error {
	if err := syscall.Mkdirat(t.to.fd(), name, 0o700); err != nil {
		return err
	}
	return t.to.enter(name)
}

func (t *treeCopy) ending(fd int) error {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return err
	}
	return t.finish(t.to.fd(), &st)
}

func (t *treeCopy) left(int, string) error {
	_, err := t.to.leave()
	return err
}
