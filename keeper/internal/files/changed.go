package files

import (
	"slices"
	"strings"
	"syscall"

	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/temporary"
)

const (
	maxLooked = 50_000   // entries that a search for changed files looks at
	maxTold   = 24 << 20 // bytes of an answer
	eachTold  = 512      // of one, without its path
	eachByte  = 8        // of its path, escaped, and perhaps once more in base64
)

// passedOver are directories full of files that nobody made for their own sake.
var passedOver = map[string]bool{
	".git": true, "node_modules": true, "__pycache__": true, ".venv": true, ".cache": true, ".ipynb_checkpoints": true,
}

// ourPlaces are the keeper's own directories.
var ourPlaces = []string{"/run/skerry", "/var/lib/skerry"}

type changes struct {
	walk
	since  int64
	limit  int
	looked int
	told   int
	own    []syscall.Stat_t
	found  []*Info
	more   bool
}

// Changed lists regular files below a directory whose content or properties were changed at a time, in nanoseconds, or later.
func (a *Area) Changed(path string, since int64, limit int) ([]*Info, Listing, error) {
	c := &changes{since: since, limit: limit, found: []*Info{}}
	c.hidden = true
	defer c.close()
	for _, place := range ourPlaces {
		var st syscall.Stat_t
		if syscall.Lstat(place, &st) == nil {
			c.own = append(c.own, st)
		}
	}
	if err := a.started(&c.walk, path); err != nil {
		return nil, Listing{}, err
	}
	if _, err := a.inSteps(c.step); err != nil {
		return nil, Listing{}, err
	}
	return c.found, Listing{c.more || c.cut, c.skipped}, nil
}

func (c *changes) step() (verdict, error) {
	if c.over() {
		return done, nil
	}
	e, err := c.next()
	if e == nil {
		return goOn, err
	}
	if c.looked++; c.looked > maxLooked {
		c.more = true
		return done, nil
	}
	if e.Type != syscall.DT_UNKNOWN && e.Type != syscall.DT_REG && e.Type != syscall.DT_DIR || temporary.Ours(e.Name) {
		return goOn, nil
	}
	var st syscall.Stat_t
	if linux.Lstatat(c.way.fd(), e.Name, &st) != nil {
		return goOn, nil // vanished
	}
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		if !passedOver[e.Name] && !c.ours(&st) {
			c.enter(e.Name)
		}
	case syscall.S_IFREG:
		if st.Ctim.Nano() < c.since {
			return goOn, nil
		}
		if c.told += eachTold + eachByte*(len(c.prefix)+len(e.Name)); len(c.found) == c.limit || c.told > maxTold {
			c.more = true
			return done, nil
		}
		c.add(e.Name, &st)
	}
	return goOn, nil
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
