// Package ignore says which paths a project's ignore rules leave out, as git does: the last rule that matches counts,
// and what lies in a directory that is left out stays out, unless git has it in its index.
package ignore

import "strings"

const special = "*?[\\"

// Verdict is what becomes of a path.
type Verdict byte

// Kept: it counts. Left: it is left out, with all below. Passed: a directory that is left out, and below which something
// counts nevertheless.
const (
	Kept Verdict = iota
	Left
	Passed
)

type rule struct {
	text      string // without '!' and the slashes around it
	base      string // the directory that it counts in, with a slash at its end
	plain     int    // so many characters of it are no pattern
	not       bool
	directory bool
	name      bool // any name below; else a path from the base on
	ends      bool // "*" and a plain rest
}

// List is lines of one ignore file, and the directory that they count in ("" is the root).
type List struct {
	Base  string
	Lines []string
}

// Rules are all of a project's.
type Rules struct {
	byBase  map[string][]numbered
	tracked map[string]bool // true: it counts; false: something below does
}

type numbered struct {
	number int
	rule   rule
}

// Chain is the rules that count in one directory, the strongest last.
type Chain struct {
	rules []numbered
	left  bool // the directory itself is left out, and looked into for what is tracked below
}

// New reads rules, the weaker lists first, and the paths that count in spite of them.
func New(lists []List, tracked []string) *Rules {
	r := &Rules{byBase: map[string][]numbered{}, tracked: map[string]bool{}}
	number := 0
	for _, list := range lists {
		base := strings.Trim(list.Base, "/")
		for i, line := range list.Lines {
			if i == 0 {
				line = strings.TrimPrefix(line, "\uFEFF")
			}
			if one, is := parse(line); is {
				if base != "" {
					one.base = base + "/"
				}
				r.byBase[base] = append(r.byBase[base], numbered{number, one})
				number++
			}
		}
	}
	for _, path := range tracked {
		path = strings.Trim(path, "/")
		r.tracked[path] = true
		for cut := strings.LastIndexByte(path, '/'); cut > 0; cut = strings.LastIndexByte(path, '/') {
			path = path[:cut]
			if _, known := r.tracked[path]; known {
				break
			}
			r.tracked[path] = false
		}
	}
	return r
}

func parse(line string) (one rule, is bool) {
	if line == "" || line[0] == '#' {
		return one, false
	}
	text := trimBlanks(strings.TrimSuffix(line, "\r"))
	text, one.not = strings.CutPrefix(text, "!")
	plain := strings.IndexAny(text, special)
	if plain < 0 {
		plain = len(text)
	}
	one.ends = strings.HasPrefix(text, "*") && !strings.ContainsAny(text[1:], special)
	text, one.directory = strings.CutSuffix(text, "/")
	one.name = !strings.Contains(text, "/")
	one.plain = min(plain, len(text))
	if !one.name && text[0] == '/' {
		text = text[1:]
		one.plain--
	}
	one.text = text
	return one, true
}

// trimBlanks takes blanks off the end that no backslash keeps.
func trimBlanks(s string) string {
	end := -1
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case ' ':
			if end < 0 {
				end = i
			}
			continue
		case '\\':
			if i++; i == len(s) {
				return s
			}
		}
		end = -1
	}
	if end >= 0 {
		return s[:end]
	}
	return s
}

func (r *rule) match(path, name string, directory bool, left *int) bool {
	switch {
	case r.directory && !directory:
		return false
	case r.name && r.plain == len(r.text):
		return r.text == name
	case r.name && r.ends:
		return strings.HasSuffix(name, r.text[1:])
	case r.name:
		return matches(r.text, name, false, left)
	}
	rest := path[len(r.base):]
	if len(rest) < r.plain || rest[:r.plain] != r.text[:r.plain] {
		return false
	}
	rest = rest[r.plain:]
	if r.plain == len(r.text) {
		return rest == ""
	}
	return matches(r.text[r.plain:], rest, true, left)
}

// Root is the chain of the root itself.
func (r *Rules) Root() *Chain { return &Chain{rules: r.byBase[""]} }

// Below is the chain of a directory in one whose chain is known, if it was kept or passed.
func (r *Rules) Below(above *Chain, path string, v Verdict) *Chain {
	own, left := r.byBase[path], v == Passed
	if len(own) == 0 && left == above.left {
		return above
	}
	return &Chain{merge(above.rules, own), left}
}

func merge(a, b []numbered) []numbered {
	if len(b) == 0 {
		return a
	}
	out := make([]numbered, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if a[0].number < b[0].number {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return append(append(out, a...), b...)
}

// Judge tells of a path in the directory of a chain; name is its last part.
func (r *Rules) Judge(in *Chain, path, name string, directory bool) Verdict {
	itself, known := r.tracked[path]
	switch {
	case known && itself:
		return Kept
	case !in.left && !in.matches(path, name, directory):
		return Kept
	case known && directory:
		return Passed
	}
	return Left
}

func (c *Chain) matches(path, name string, directory bool) bool {
	left := steps
	for i := len(c.rules) - 1; i >= 0; i-- {
		if one := &c.rules[i].rule; one.match(path, name, directory, &left) {
			return !one.not
		}
	}
	return false
}
