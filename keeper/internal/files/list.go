package files

import (
	"strings"
	"syscall"

	"skerry/keeper/internal/match/glob"
)

const maxBatchBytes = 1 << 20 // bytes of paths held before sending

// ListOptions select entries below a directory.
type ListOptions struct {
	Depth  int // levels; 1: the directory's own entries
	Hidden bool
	Glob   string // "": everything
	Limit  int

	Attributes bool
}

// Listing reports how complete a list is.
type Listing struct {
	More    bool // not all entries are listed
	Skipped int  // unreadable directories
}

type listing struct {
	walk
	options ListOptions
	pattern *glob.Pattern
	states  []glob.State // one per open directory
	batch   []*Info
	size    int // bytes of paths in batch; one path may have 256 KiB
	more    bool
}

// List passes the entries below a directory to each, sorted by name and a directory before its contents, until each
// returns false.
func (fs *UserFS) List(path string, o ListOptions, begin func(), each func(*Info) bool) (Listing, error) {
	l := &listing{options: o}
	l.hidden = o.Hidden || o.Glob != ""
	defer l.close()
	if o.Glob != "" {
		pattern, err := glob.Parse(o.Glob, o.Hidden)
		if err != nil {
			return Listing{}, err
		}
		l.pattern, l.states = pattern, []glob.State{pattern.Begin()}
	}
	if err := fs.startWalk(&l.walk, path); err != nil {
		return Listing{}, err
	}
	if v, err := fs.runSteps(l.first); err != nil || v != pause {
		return Listing{}, err
	}
	begin()
	for {
		v, err := fs.runSteps(l.step)
		if err != nil {
			return Listing{}, err
		}
		for _, info := range l.batch {
			if !each(info) {
				return Listing{true, l.skipped}, nil
			}
		}
		if l.batch, l.size = l.batch[:0], 0; v == done {
			return Listing{l.more || l.cut, l.skipped}, nil
		}
	}
}

// first reads the directory itself; only after that is a response certain.
func (l *listing) first() (verdict, error) {
	if l.stack[0].reading == nil {
		return pause, nil
	}
	_, err := l.next()
	return proceed, err
}

// step examines one entry. The state of the pattern decides whether anything below a directory can match, so that other
// directories are not entered.
func (l *listing) step() (verdict, error) {
	if l.over() {
		return done, nil
	}
	e, err := l.next()
	if e == nil {
		if l.pattern != nil && l.depth() < len(l.states) {
			l.states = l.states[:l.depth()]
		}
		return proceed, err
	}
	state, wanted := l.judge(e.Name)
	below := l.depth() < l.options.Depth && (l.pattern == nil || state != nil)
	if !wanted && (!below || e.Type != syscall.DT_UNKNOWN && e.Type != syscall.DT_DIR) {
		return proceed, nil
	}
	info, err := describe(l.way.fd(), e.Name)
	if err != nil {
		return proceed, nil // vanished
	}
	if wanted {
		if l.options.Limit--; l.options.Limit < 0 {
			l.more = true
			return done, nil
		}
		if l.options.Attributes {
			info.Attributes = readAttributes(l.way.fd(), e.Name)
		}
		l.give(info, e.Name)
	}
	if below && info.Type == "directory" {
		depth := l.depth()
		if l.enter(e.Name); l.depth() > depth && l.pattern != nil {
			l.states = append(l.states, state)
		}
	}
	if len(l.batch) >= stepsPerJob || l.size > maxBatchBytes {
		return pause, nil
	}
	return proceed, nil
}

func (l *listing) judge(name string) (state glob.State, wanted bool) {
	if l.pattern == nil {
		return nil, true
	}
	return l.pattern.Next(l.states[len(l.states)-1], name)
}

func (l *listing) give(info *Info, name string) {
	if l.options.Depth > 1 {
		whole := string(l.prefix) + name
		info.Path, info.Raw = text(whole)
		info.Name = info.Path[strings.LastIndexByte(info.Path, '/')+1:]
	}
	l.batch = append(l.batch, info)
	l.size += len(info.Path)
}
