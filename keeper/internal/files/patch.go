package files

import (
	"errors"
	"io"
	"strings"
	"syscall"

	"skerry/keeper/internal/asuser"
	"skerry/keeper/internal/diff"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/tempname"
)

// Patched is the effect of a diff on one file. Path is relative to the patched directory, and empty if the path is the
// file itself. Offsets are the distances of the hunks from their stated positions.
type Patched struct {
	Path    string `json:"path"`
	Raw     []byte `json:"raw,omitempty"`
	Action  string `json:"action"`
	Added   int    `json:"added"`
	Removed int    `json:"removed"`
	Offsets []int  `json:"offsets"`
}

// ErrPatch rejects a diff that does not fit its path.
type ErrPatch string

func (e ErrPatch) Error() string { return string(e) }

// Patch applies a diff to a file, or to the files that it names below a directory: completely or not at all.
func (fs *UserFS) Patch(path string, text []byte) (done []*Patched, err error) {
	changes, err := diff.Parse(text)
	if err != nil {
		return nil, err
	}
	info, err := fs.Stat(path, true)
	if err != nil && !errors.Is(err, syscall.ENOENT) {
		return nil, err
	}
	named := info == nil || info.Type != "directory"
	if named && len(changes) > 1 {
		return nil, ErrPatch("the diff changes several files, but the path is a file")
	}
	if !named {
		if err := checkNames(changes); err != nil {
			return nil, err
		}
	}
	err = fs.retryEdit(func() error {
		done, err = fs.patchOnce(path, named, changes)
		return err
	})
	return done, err
}

// checkNames rejects names that leave the directory or occur twice.
func checkNames(changes []diff.File) error {
	seen := map[string]bool{}
	for _, f := range changes {
		name := nameOf(&f)
		if f.Unnamed {
			return ErrPatch("the diff names no file, but the path is a directory")
		}
		if f.Old != "" && f.New != "" && f.Old != f.New {
			return ErrPatch("the diff renames a file, which is not supported: " + f.Old + " and " + f.New)
		}
		for part := range strings.SplitSeq(name, "/") {
			if special(part) {
				return ErrPatch("the name leaves the directory: " + name)
			}
		}
		if seen[name] {
			return ErrPatch("the diff names a file twice: " + name)
		}
		seen[name] = true
	}
	return nil
}

func nameOf(f *diff.File) string {
	if f.New != "" {
		return f.New
	}
	return f.Old
}

// patchOnce writes all new files first and then renames them into place; a failure rolls the others back.
func (fs *UserFS) patchOnce(path string, named bool, changes []diff.File) (done []*Patched, err error) {
	var all []*patch
	defer func() {
		for _, p := range all {
			p.stop()
		}
	}()
	for i := range changes {
		p := &patch{edit: newEdit(fs), file: &changes[i]}
		if !named {
			p.below = nameOf(p.file)
		}
		all = append(all, p)
		if err := p.prepare(path); err != nil {
			return nil, p.at(err)
		}
		done = append(done, p.result())
	}
	for i, p := range all {
		if err := p.take(); err != nil {
			for j := i - 1; j >= 0; j-- {
				_ = asuser.Do(fs.User, func() error { all[j].rollBack(); return nil })
			}
			return nil, p.at(err)
		}
	}
	return done, nil
}

// patch is the change of one file.
type patch struct {
	*edit
	file    *diff.File
	below   string // name below the directory; "": the path is the file
	offsets []int
	made    bool // it was created
	gone    bool // it was deleted: the old file has the temporary name
}

func (p *patch) at(err error) error {
	if p.below == "" {
		return err
	}
	return &At{p.below, err}
}

func (p *patch) action() string {
	switch {
	case p.file.Old == "" && !p.file.Unnamed:
		return "created"
	case p.file.New == "" && !p.file.Unnamed:
		return "deleted"
	}
	return "changed"
}

func (p *patch) result() *Patched {
	done := &Patched{Action: p.action(), Offsets: p.offsets}
	done.Path, done.Raw = text(p.below)
	for _, h := range p.file.Hunks {
		done.Added, done.Removed = done.Added+h.Added, done.Removed+h.Removed
	}
	return done
}

// prepare writes the new file beside the old one.
func (p *patch) prepare(path string) (err error) {
	if p.below != "" {
		if err := asuser.Do(p.fs.User, func() error { return p.checkNoLink(path) }); err != nil {
			return err
		}
		path = strings.TrimRight(path, "/") + "/" + p.below
	}
	var source io.Reader = strings.NewReader("")
	if p.action() == "created" {
		err = asuser.Do(p.fs.User, func() error { return p.findFree(path) })
	} else if err = p.start(path); err == nil {
		source = p.reader()
	}
	if err == nil {
		err = asuser.Do(p.fs.User, p.begin)
	}
	if err != nil {
		return err
	}
	if p.offsets, err = diff.Apply(source, p, p.file.Hunks, p.fs.heartbeat); err != nil {
		return err
	}
	if p.action() == "deleted" {
		return p.checkEmptied()
	}
	return nil
}

// checkNoLink rejects a name that leads over a link: the author of the diff meant the file, not the target of a link.
func (p *patch) checkNoLink(path string) error {
	path, err := p.fs.absolute(path)
	if err != nil {
		return err
	}
	root, err := linux.OpenBelow(path, linux.OPath|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer closeAll(root)
	fd, err := linux.OpenIn(root, p.below, linux.OPath|syscall.O_NOFOLLOW)
	if err == syscall.ENOENT { // it will be created
		return nil
	}
	defer closeAll(fd)
	var st syscall.Stat_t
	if err == nil {
		err = syscall.Fstat(fd, &st)
	}
	if err == nil && kind(st.Mode) == "link" {
		err = syscall.ELOOP
	}
	return err
}

// findFree finds the place for a new file.
func (p *patch) findFree(path string) error {
	if err := p.find(path, true); err != nil {
		return err
	}
	if p.old != nil {
		return syscall.EEXIST
	}
	return nil
}

// checkEmptied checks that the diff removes every line of a file that it deletes.
func (p *patch) checkEmptied() error {
	var st syscall.Stat_t
	if err := syscall.Fstat(p.fd, &st); err != nil {
		return err
	}
	if st.Size > 0 {
		return &diff.Mismatch{Hunk: len(p.file.Hunks), Reason: "the file has more lines than the diff removes"}
	}
	return asuser.Do(p.fs.User, func() error {
		temp := p.temp
		p.temp = ""
		return linux.Unlinkat(p.dir, temp, 0)
	})
}

// take moves the file into place.
func (p *patch) take() error {
	switch p.action() {
	case "created":
		if err := p.setOwnerAndMode(WriteOptions{Mode: p.file.Mode}); err != nil {
			return err
		}
		return asuser.Do(p.fs.User, func() error {
			err := linux.Rename(p.dir, p.temp, p.dir, p.name, linux.NoReplace)
			if err == nil {
				p.temp, p.made = "", true
			}
			return err
		})
	case "deleted":
		return asuser.Do(p.fs.User, p.moveAside)
	}
	return p.commit(p.file.Mode)
}

func (p *patch) moveAside() error {
	if err := p.unchanged(); err != nil {
		return err
	}
	temp := tempname.Name()
	if err := linux.Rename(p.dir, p.name, p.dir, temp, linux.NoReplace); err != nil {
		return err
	}
	p.temp, p.gone = temp, true
	var old syscall.Stat_t
	if err := linux.Lstatat(p.dir, temp, &old); err != nil || !sameContent(&old, &p.read) {
		p.rollBack()
		return ErrChanged
	}
	return nil
}

// rollBack reverts take. It must run with the user's rights.
func (p *patch) rollBack() {
	switch {
	case p.made:
		_ = linux.Unlinkat(p.dir, p.name, 0)
	case p.gone:
		if linux.Rename(p.dir, p.temp, p.dir, p.name, linux.NoReplace) == nil {
			p.temp, p.gone = "", false
		}
	default:
		p.undo()
	}
}
