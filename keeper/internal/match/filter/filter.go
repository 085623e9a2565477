// Package filter matches paths below a directory against a caller's include or exclude patterns.
package filter

import (
	"errors"
	"strings"

	"skerry/keeper/internal/match/glob"
)

const maxPatterns = 100

// ErrBad rejects an invalid pattern, or too many of them.
var ErrBad = errors.New("invalid pattern, or more than 100 patterns")

// Set is a list of patterns.
//
// A pattern without a slash matches a name at any depth; with a slash it matches the path from the root; with a slash
// at the end it matches directories only. Everything in a matching directory matches.
type Set []one

type one struct {
	*glob.Pattern
	directory bool
}

// Parse parses patterns.
func Parse(texts []string) (Set, error) {
	if len(texts) > maxPatterns {
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

// Match reports whether a pattern matches a path or one of its parents.
func (s Set) Match(path string, directory bool) bool { return s.match(path, directory, true) }

// MatchLast is Match for a path whose parents are known not to match.
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
