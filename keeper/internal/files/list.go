package files

import (
	"strings"
	"syscall"

	"skerry/keeper/internal/glob"
)

const someMost = 1 << 20 // bytes of paths that are held to be sent

// ListOptions say what is wanted of what lies below a directory.
type ListOptions struct {
	Depth  int // levels; 1: the directory's own entries
	Hidden bool
	Glob   string // "" is everything
	Limit  int
}

// Listing tells how complete a list is.
type Listing struct {
	More    bool // there are others
	Skipped int  // directories below that could not be read
}

type listing struct {
	walk
	options ListOptions
	pattern *glob.Pattern
	states  []glob.State // of the directories that we are in
	some    []*Info
	size    int // bytes of paths in some: one may have a quarter of a MiB
	more    bool
}

// List gives what lies below a directory to each, in order of the names and a directory before what is in it, until it
// returns false.
func (a *Area) List(path string, o ListOptions, begin func(), each func(*Info) bool) (Listing, error) {
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
	if err := a.started(&l.walk, path); err != nil {
		return Listing{}, err
	}
	if v, err := a.inSteps(l.first); err != nil || v != pause {
		return Listing{}, err
	}
	begin()
	for {
		v, err := a.inSteps(l.step)
		if err != nil {
			return Listing{}, err
		}
		for _, info := range l.some {
			if !each(info) {
				return Listing{true, l.skipped}, nil
			}
		}
		if l.some, l.size = l.some[:0], 0; v == done {
			return Listing{l.more || l.cut, l.skipped}, nil
		}
	}
}

// first reads the directory itself: only after that it is certain that there will be an answer.
func (l *listing) first() (verdict, error) {
	if l.rooms[0].reading == nil {
		return pause, nil
	}
	_, err := l.next()
	return goOn, err
}

func (l *listing) step() (verdict, error) {
	if l.over() {
		return done, nil
	}
	e, err := l.next()
	if e == nil {
		if l.pattern != nil && l.depth() < len(l.states) {
			l.states = l.states[:l.depth()]
		}
		return goOn, err
	}
	state, wanted := l.judge(e.Name)
	below := l.depth() < l.options.Depth && (l.pattern == nil || state != nil)
	if !wanted && (!below || e.Type != syscall.DT_UNKNOWN && e.Type != syscall.DT_DIR) {
		return goOn, nil
	}
	info, err := describe(l.way.fd(), e.Name)
	if err != nil {
		return goOn, nil // vanished
	}
	if wanted {
		if l.options.Limit--; l.options.Limit < 0 {
			l.more = true
			return done, nil
		}
		l.give(info, e.Name)
	}
	if below && info.Type == "directory" {
		depth := l.depth()
		if l.enter(e.Name); l.depth() > depth && l.pattern != nil {
			l.states = append(l.states, state)
		}
	}
	if len(l.some) >= stepsAtOnce || l.size > someMost {
		return pause, nil
	}
	return goOn, nil
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
	l.some = append(l.some, info)
	l.size += len(info.Path)
}
