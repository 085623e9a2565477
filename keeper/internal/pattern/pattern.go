// Package pattern matches paths below a directory against what a caller wants in or out of it.
package pattern

import (
	"errors"
	"path"
	"strings"
)

const (
	most    = 100
	longest = 1024
	deepest = 32 // components; each "**" multiplies the work
)

// ErrBad means a pattern that can't be read, or too many of them.
var ErrBad = errors.New("a pattern can't be read, or there are more than 100 of them")

// Set is a list of patterns.
//
// A pattern without a slash matches a name at any depth, one with a slash the path from the root. * and ? stop at
// slashes, ** between slashes is any number of directories, a slash at the end asks for a directory. What lies in a
// directory that matches, matches.
type Set []one

type one struct {
	parts     []string
	directory bool
}

// Parse reads patterns.
func Parse(texts []string) (Set, error) {
	if len(texts) > most {
		return nil, ErrBad
	}
	var set Set
	for _, text := range texts {
		p, err := parse(text)
		if err != nil {
			return nil, err
		}
		set = append(set, p)
	}
	return set, nil
}

func parse(text string) (one, error) {
	trimmed := strings.TrimSuffix(text, "/")
	p := one{directory: trimmed != text}
	anchored := strings.Contains(trimmed, "/")
	p.parts = strings.Split(strings.TrimPrefix(trimmed, "/"), "/")
	if len(text) > longest || len(p.parts) > deepest {
		return p, ErrBad
	}
	for i, part := range p.parts {
		part = strings.ReplaceAll(part, "[!", "[^")
		if _, err := path.Match(part, "x"); err != nil || part == "" {
			return p, ErrBad
		}
		p.parts[i] = part
	}
	if !anchored {
		p.parts = append([]string{"**"}, p.parts...)
	}
	return p, nil
}

// Match says whether a path, or a directory that it lies in, is meant by one of the patterns.
func (s Set) Match(name string, directory bool) bool {
	if len(s) == 0 {
		return false
	}
	parts := strings.Split(name, "/")
	for _, p := range s {
		for length := 1; length <= len(parts); length++ {
			if (directory || length < len(parts) || !p.directory) && match(p.parts, parts[:length]) {
				return true
			}
		}
	}
	return false
}

// MatchLast is Match for a path whose directories are known not to match.
func (s Set) MatchLast(name string, directory bool) bool {
	if len(s) == 0 {
		return false
	}
	parts := strings.Split(name, "/")
	for _, p := range s {
		if (directory || !p.directory) && match(p.parts, parts) {
			return true
		}
	}
	return false
}

func match(pattern, parts []string) bool {
	for len(pattern) > 0 {
		if pattern[0] == "**" {
			if len(pattern) == 1 {
				return len(parts) > 0
			}
			for i := range parts {
				if match(pattern[1:], parts[i:]) {
					return true
				}
			}
			return false
		}
		if len(parts) == 0 {
			return false
		}
		if ok, _ := path.Match(pattern[0], parts[0]); !ok {
			return false
		}
		pattern, parts = pattern[1:], parts[1:]
	}
	return len(parts) == 0
}
