// Package pattern matches paths below a directory against what a caller wants in or out of it.
package pattern

import (
	"errors"
	"strings"

	"skerry/keeper/internal/glob"
)

const most = 100

// ErrBad means a pattern that can't be read, or too many of them.
var ErrBad = errors.New("a pattern can't be read, or there are more than 100 of them")

// Set is a list of patterns.
//
// A pattern without a slash matches a name at any depth, one with a slash the path from the root; a slash at the end asks
// for a directory. What lies in a directory that matches, matches.
type Set []one

type one struct {
	*glob.Pattern
	directory bool
}

// Parse reads patterns.
func Parse(texts []string) (Set, error) {
	if len(texts) > most {
		return nil, ErrBad
	}
	var set Set
	for _, text := range texts {
		trimmed := strings.TrimSuffix(text, "/")
		if !strings.Contains(trimmed, "/") && trimmed != "" {
			trimmed = "**/" + trimmed
		}
		p, err := glob.Parse(trimmed, true)
		if err != nil {
			return nil, ErrBad
		}
		set = append(set, one{p, strings.HasSuffix(text, "/")})
	}
	return set, nil
}

// Match says whether a path, or a directory that it lies in, is meant by one of the patterns.
func (s Set) Match(path string, directory bool) bool { return s.match(path, directory, true) }

// MatchLast is Match for a path whose directories are known not to match.
func (s Set) MatchLast(path string, directory bool) bool { return s.match(path, directory, false) }

func (s Set) match(path string, directory, above bool) bool {
	for _, p := range s {
		state, whole, rest, more := p.Begin(), false, path, true
		for state != nil && more {
			var name string
			name, rest, more = strings.Cut(rest, "/")
			state, whole = p.Next(state, name)
			if whole && more && above || whole && !more && (directory || !p.directory) {
				return true
			}
		}
	}
	return false
}
