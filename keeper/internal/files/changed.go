package files

import (
	"slices"
	"strings"
	"syscall"

	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/tempname"
)

const (
	maxExamined      = 50_000   // entries examined by one call
	maxAnswerBytes   = 24 << 20 // estimated size of an answer
	bytesPerEntry    = 512      // without the path
	bytesPerPathByte = 8        // escaped, and possibly again in base64
)

// skippedDirectories hold generated files that are not worth listing.
var skippedDirectories = map[string]bool{
	".git": true, "node_modules": true, "__pycache__": true, ".venv": true, ".cache": true, ".ipynb_checkpoints": true,
}

// keeperDirectories are the keeper's own directories.
var keeperDirectories = []string{"/run/skerry", "/var/lib/skerry"}

type changes struct {
	walk
	since       int64
	limit       int
	examined    int
	answerBytes int
	own         []syscall.Stat_t
	found       []*Info
	more        bool
}

// Changed lists regular files below a directory with a ctime of `since` (in nanoseconds) or later.
func (fs *UserFS) Changed(path string, since int64, limit int) ([]*Info, Listing, error) {
	c := &changes{since: since, limit: limit, found: []*Info{}}
	c.hidden = true
	defer c.close()
	for _, place := range keeperDirectories {
		var st syscall.Stat_t
		if syscall.Lstat(place, &st) == nil {
			c.own = append(c.own, st)
		}
	}
	if err := fs.startWalk(&c.walk, path); err != nil {
		return nil, Listing{}, err
	}
	if _, err := fs.runSteps(c.step); err != nil {
		return nil, Listing{}, err
	}
	return c.found, Listing{c.more || c.cut, c.skipped}, nil
}

// step examines one entry. ctime rather than mtime decides, because programs inside can set the mtime but not the
// ctime.
func (c *changes) step() (verdict, error) {
	if c.over() {
		return done, nil
	}
	e, err := c.next()
	if e == nil {
		return proceed, err
	}
	if c.examined++; c.examined > maxExamined {
		c.more = true
		return done, nil
	}
	if e.Type != syscall.DT_UNKNOWN && e.Type != syscall.DT_REG && e.Type != syscall.DT_DIR || tempname.Ours(e.Name) {
		return proceed, nil
	}
	var st syscall.Stat_t
	if linux.Lstatat(c.way.fd(), e.Name, &st) != nil {
		return proceed, nil // vanished
	}
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		if !skippedDirectories[e.Name] && !c.ours(&st) {
			c.enter(e.Name)
		}
	case syscall.S_IFREG:
		if st.Ctim.Nano() < c.since {
			return proceed, nil
		}
		if c.answerBytes += bytesPerEntry + bytesPerPathByte*(len(c.prefix)+len(e.Name)); len(c.found) == c.limit || c.answerBytes > maxAnswerBytes {
			c.more = true
			return done, nil
		}
		c.add(e.Name, &st)
	}
	return proceed, nil
}

func (c *changes) ours(st *syscall.Stat_t) bool {
	return slices.ContainsFunc(c.own, func(own syscall.Stat_t) bool { return own.Dev == st.Dev && own.Ino == st.Ino })
}

func (c *changes) add(name string, st *syscall.Stat_t) {
	info := newInfo(name, st)
	info.Path, info.Raw = text(string(c.prefix) + name)
	info.Name = info.Path[strings.LastIndexByte(info.Path, '/')+1:]
	c.found = append(c.found, info)
}
