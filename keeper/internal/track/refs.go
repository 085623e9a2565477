package track

import (
	"syscall"

	"skerry/keeper/internal/linux"
)

const (
	maxRefDirectories = 1024
	maxRefNames       = 100_000
)

// watchGit watches the refs of the project's own repository. The caller holds the lock. If watching fails, refs count
// as changed in each scan.
func (t *Tracker) watchGit(root int) {
	e := t.watchSet
	for _, n := range e.refs {
		e.forget(n)
	}
	e.refs, t.gitStale, t.gitUnwatched = nil, false, false
	top := &node{wd: -1, name: gitDir, role: gitRole}
	fd, err := linux.OpenInside(root, gitDir, directory)
	switch {
	case absent(err):
		return
	case err != nil:
		t.gitUnwatched = true
		return
	}
	_, err = e.place(top, fd)
	_ = syscall.Close(fd)
	if err != nil {
		t.gitUnwatched = true
		return
	}
	e.refs = append(e.refs, top)
	names := maxRefNames
	pending := []*node{child(top, "refs"), child(top, "reftable")}
	for len(pending) > 0 {
		n := pending[len(pending)-1]
		n.role = refsRole
		below, err := t.watchRefs(root, n, &names)
		pending = append(pending[:len(pending)-1], below...)
		if err != nil || names < 0 || len(e.refs)+len(pending) > maxRefDirectories {
			t.gitUnwatched = true
			return
		}
	}
}

// watchRefs watches one directory of refs and returns its subdirectories.
func (t *Tracker) watchRefs(root int, n *node, names *int) (below []*node, err error) {
	fd, err := linux.OpenInside(root, n.path(), directory)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = syscall.Close(fd) }()
	if _, err := t.watchSet.place(n, fd); err != nil {
		return nil, err
	}
	t.watchSet.refs = append(t.watchSet.refs, n)
	dirents := linux.NewDirents(fd)
	for *names >= 0 && n.depth < maxDepth {
		d, err := dirents.Next()
		if d == nil || err != nil {
			return below, nil
		}
		*names--
		if d.Type == syscall.DT_DIR || d.Type == syscall.DT_UNKNOWN {
			below = append(below, child(n, d.Name))
		}
	}
	return below, nil
}
