// Package glob matches paths against patterns like "src/**/*.{ts,tsx}", in time linear in the path: `*` and `?` stand
// for characters within a name, `[a-z]` and `[!a-z]` for sets, `{a,b}` for alternatives, `**` for any number of
// directories.
package glob

import (
	"errors"
	"strings"
)

const (
	maxLength       = 1024
	maxSegments     = 63 // each is a bit of a state
	maxAlternatives = 64
	anyDepth        = "**"
)

// ErrPattern rejects a pattern.
var ErrPattern = errors.New("not a pattern")

// Pattern is a parsed pattern.
type Pattern struct {
	alternatives [][]string
	hidden       bool
}

// State is the progress of a directory's path in each alternative: a bit for each segment that the next name may match.
type State []uint64

// Parse parses a pattern for relative paths. Unless hidden is set, only a segment with a leading dot matches names with
// a leading dot.
func Parse(pattern string, hidden bool) (*Pattern, error) {
	if pattern == "" || len(pattern) > maxLength || strings.ContainsRune(pattern, 0) {
		return nil, ErrPattern
	}
	p := &Pattern{hidden: hidden}
	expanded, err := expand(pattern, nil)
	if err != nil {
		return nil, err
	}
	for _, one := range expanded {
		segments, err := split(one)
		if err != nil {
			return nil, err
		}
		p.alternatives = append(p.alternatives, segments)
	}
	return p, nil
}

// split splits a pattern into segments and rejects "..".
func split(pattern string) (segments []string, err error) {
	for _, s := range strings.Split(pattern, "/") {
		switch {
		case s == "" || s == ".":
			continue
		case s == "..":
			return nil, ErrPattern
		case s == anyDepth && len(segments) > 0 && segments[len(segments)-1] == anyDepth:
			continue
		case s != anyDepth && !wellFormed(s):
			return nil, ErrPattern
		}
		segments = append(segments, s)
	}
	if len(segments) == 0 || len(segments) > maxSegments {
		return nil, ErrPattern
	}
	return segments, nil
}

// expand expands the first pair of braces and recurses.
func expand(pattern string, found []string) ([]string, error) {
	open, parts, rest, err := braces(pattern)
	if err != nil {
		return nil, err
	}
	if open < 0 {
		if len(found) == maxAlternatives {
			return nil, ErrPattern
		}
		return append(found, pattern), nil
	}
	for _, part := range parts {
		if found, err = expand(pattern[:open]+part+rest, found); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// braces finds the first pair: its position (-1: none), its parts and the rest.
func braces(pattern string) (open int, parts []string, rest string, err error) {
	depth, from := 0, 0
	open = -1
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case c == '[' && set(pattern[i:]) > 0:
			i += set(pattern[i:]) - 1
		case c == '{':
			if depth++; depth == 1 {
				open, from = i, i+1
			}
		case c == ',' && depth == 1:
			parts = append(parts, pattern[from:i])
			from = i + 1
		case c == '}' && depth > 0:
			if depth--; depth == 0 {
				return open, append(parts, pattern[from:i]), pattern[i+1:], nil
			}
		}
	}
	if depth > 0 {
		return 0, nil, "", ErrPattern
	}
	return -1, nil, "", nil
}

// Begin returns the state of the base directory.
func (p *Pattern) Begin() State {
	state := make(State, len(p.alternatives))
	for i := range state {
		state[i] = 1
	}
	return state
}

// Next consumes one more name. Whole: a path that ends here matches. The new state is nil if nothing below can match.
func (p *Pattern) Next(state State, name string) (next State, whole bool) {
	next = make(State, len(state))
	alive := false
	for i, segments := range p.alternatives {
		next[i] = p.advance(segments, state[i], name)
		whole = whole || next[i]&(1<<len(segments)) != 0
		alive = alive || next[i]&^(1<<len(segments)) != 0
	}
	if !alive {
		return nil, whole
	}
	return next, whole
}

// advance returns the segments that the next name may match, after one name.
func (p *Pattern) advance(segments []string, state uint64, name string) (next uint64) {
	state = closure(segments, state)
	for i, segment := range segments {
		if state&(1<<i) == 0 {
			continue
		}
		dotted := name[0] == '.' && !p.hidden
		switch {
		case segment == anyDepth:
			if !dotted {
				next |= 1<<i | 1<<(i+1)
			}
		case (!dotted || segment[0] == '.') && match(segment, name):
			next |= 1 << (i + 1)
		}
	}
	return next
}

// closure adds the segments that are reachable when `**` matches nothing; at the end of a pattern it must match
// something.
func closure(segments []string, state uint64) uint64 {
	for i, segment := range segments {
		if segment == anyDepth && state&(1<<i) != 0 && i+1 < len(segments) {
			state |= 1 << (i + 1)
		}
	}
	return state
}

// Matches matches a whole path.
func (p *Pattern) Matches(path string) bool {
	state, whole := p.Begin(), false
	for name := range strings.SplitSeq(path, "/") {
		if state == nil || name == "" {
			return false
		}
		state, whole = p.Next(state, name)
	}
	return whole
}
