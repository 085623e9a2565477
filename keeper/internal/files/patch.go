package files

import (
	"errors"
	"io"
	"strings"
	"syscall"

	"skerry/keeper/internal/diff"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/rights"
	"skerry/keeper/internal/temporary"
)

// Patched is what a diff did to one file. Path is from the patched directory on, and empty for a file that was named
// itself. Offsets are how far each hunk was from where it said.
type Patched struct {
	Path    string `json:"path"`
	Raw     []byte `json:"raw,omitempty"`
	Action  string `json:"action"`
	Added   int    `json:"added"`
	Removed int    `json:"removed"`
	Offsets []int  `json:"offsets"`
}

// ErrPatch is for a diff that does not go with the path that it is for.
type ErrPatch string

func (e ErrPatch) Error() string { return string(e) }

// Patch applies a diff to a file, or to the files that it names below a directory: all of it or nothing.
func (a *Area) Patch(path string, text []byte) (done []*Patched, err error) {
	changes, err := diff.Parse(text)
	if err != nil {
		return nil, err
	}
	info, err := a.Stat(path, true)
	if err != nil && !errors.Is(err, syscall.ENOENT) {
		return nil, err
	}
	named := info == nil || info.Type != "directory"
	if named && len(changes) > 1 {
		return nil, ErrPatch("the diff is about several files, and the path is that of one")
	}
	if !named {
		if err := checkNames(changes); err != nil {
			return nil, err
		}
	}
	err = a.again(func() error {
		done, err = a.patchOnce(path, named, changes)
		return err
	})
	return done, err
}

// checkNames refuses names that lead out of the directory, or that come twice.
func checkNames(changes []diff.File) error {
	seen := map[string]bool{}
	for _, f := range changes {
		name := nameOf(&f)
		if f.Unnamed {
			return ErrPatch("the diff names no file, and the path is a directory")
		}
		if f.Old != "" && f.New != "" && f.Old != f.New {
			return ErrPatch("the diff names two files at once: " + f.Old + " and " + f.New)
		}
		for part := range strings.SplitSeq(name, "/") {
			if special(part) {
				return ErrPatch("the name leads elsewhere: " + name)
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

// patchOnce makes all new files first, and then has them take their places; what fails takes the others back.
func (a *Area) patchOnce(path string, named bool, changes []diff.File) (done []*Patched, err error) {
	var all []*patch
	defer func() {
		for _, p := range all {
			p.stop()
		}
	}()
	for i := range changes {
		p := &patch{edit: newEdit(a), file: &changes[i]}
		if !named {
			p.below = nameOf(p.file)
		}
		all = append(all, p)
		if err := p.prepare(path); err != nil {
			return nil, p.at(err)
		}
		done = append(done, p.told())
	}
	for i, p := range all {
		if err := p.take(); err != nil {
			for j := i - 1; j >= 0; j-- {
				_ = rights.Do(a.User, func() error { all[j].back(); return nil })
			}
			return nil, p.at(err)
		}
	}
	return done, nil
}

// patch is one file of a diff on its way.
type patch struct {
	*edit
	file    *diff.File
	below   string // its name in the directory; "": the path is the file
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

func (p *patch) told() *Patched {
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
		if err := rights.Do(p.area.User, func() error { return p.direct(path) }); err != nil {
			return err
		}
		path = strings.TrimRight(path, "/") + "/" + p.below
	}
	var source io.Reader = strings.NewReader("")
	if p.action() == "created" {
		err = rights.Do(p.area.User, func() error { return p.vacant(path) })
	} else if err = p.start(path); err == nil {
		source = p.reader()
	}
	if err == nil {
		err = rights.Do(p.area.User, p.begin)
	}
	if err != nil {
		return err
	}
	if p.offsets, err = diff.Apply(source, p, p.file.Hunks, p.area.beat); err != nil {
		return err
	}
	if p.action() == "deleted" {
		return p.emptied()
	}
	return nil
}

// direct refuses a name that leads over a link: who wrote the diff meant the file, not what a link makes of it.
func (p *patch) direct(path string) error {
	path, err := p.area.absolute(path)
	if err != nil {
		return err
	}
	root, err := linux.OpenBelow(path, linux.OPath|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer closeAll(root)
	fd, err := linux.OpenIn(root, p.below, linux.OPath|syscall.O_NOFOLLOW)
	if err == syscall.ENOENT { // it is to be created
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

// vacant finds the place for a file that is to be created.
func (p *patch) vacant(path string) error {
	if err := p.find(path, true); err != nil {
		return err
	}
	if p.old != nil {
		return syscall.EEXIST
	}
	return nil
}

// emptied makes sure that nothing is left of a file that is to be deleted.
func (p *patch) emptied() error {
	var st syscall.Stat_t
	if err := syscall.Fstat(p.fd, &st); err != nil {
		return err
	}
	if st.Size > 0 {
		return &diff.Mismatch{Hunk: len(p.file.Hunks), Reason: "the file has more lines than the diff takes away"}
	}
	return rights.Do(p.area.User, func() error {
		temp := p.temp
		p.temp = ""
		return linux.Unlinkat(p.dir, temp, 0)
	})
}

// take puts the file in its place.
func (p *patch) take() error {
	switch p.action() {
	case "created":
		if err := p.settle(WriteOptions{Mode: p.file.Mode}); err != nil {
			return err
		}
		return rights.Do(p.area.User, func() error {
			err := linux.Rename(p.dir, p.temp, p.dir, p.name, linux.NoReplace)
			if err == nil {
				p.temp, p.made = "", true
			}
			return err
		})
	case "deleted":
		return rights.Do(p.area.User, p.takeAway)
	}
	return p.commit(p.file.Mode)
}

func (p *patch) takeAway() error {
	if err := p.unchanged(); err != nil {
		return err
	}
	temp := temporary.Name()
	if err := linux.Rename(p.dir, p.name, p.dir, temp, linux.NoReplace); err != nil {
		return err
	}
	p.temp, p.gone = temp, true
	var old syscall.Stat_t
	if err := linux.Lstatat(p.dir, temp, &old); err != nil || !alike(&old, &p.read) {
		p.back()
		return ErrChanged
	}
	return nil
}

// back takes a file out of its place again. It has to run with the user's rights.
func (p *patch) back() {
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
