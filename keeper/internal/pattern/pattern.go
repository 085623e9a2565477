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
	deepest = 32 // components
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

// match goes back only to the last "**": what an earlier one could take besides, that one can take too. So the work is no
// more than the product of both lengths.
func match(pattern, parts []string) bool {
	star, from := -1, 0
	i, n := 0, 0
	for n < len(parts) {
		if i < len(pattern) && pattern[i] == "**" {
			if star, from = i, n; i == len(pattern)-1 {
				return true
			}
			i++
			continue
		}
		if i < len(pattern) {
			if ok, _ := path.Match(pattern[i], parts[n]); ok {
				i, n = i+1, n+1
				continue
			}
		}
		if star < 0 {
			return false
		}
		from++
		i, n = star+1, from
	}
	return i == len(pattern)
}
