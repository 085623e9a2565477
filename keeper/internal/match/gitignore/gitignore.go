// Package gitignore decides which paths a project's ignore rules exclude, exactly as git does: the last matching rule
// wins, and everything in an excluded directory stays excluded unless it is in git's index. The matcher is written from
// the gitignore documentation, not from git's source (GPL-2.0). Tests compare the package with `git check-ignore` on
// random rules and repositories.
package gitignore

import "strings"

const special = "*?[\\"

// Verdict is the decision about a path.
type Verdict byte

// Kept: not ignored. Ignored: excluded with everything below. Descend: an ignored directory that contains tracked
// paths.
const (
	Kept Verdict = iota
	Ignored
	Descend
)

// maxSteps bounds the comparisons of wildcards for one path: a few milliseconds.
const maxSteps = 1 << 20

type rule struct {
	base      string  // directory of the rule, with a slash at the end
	literal   string  // the text in front of the first special character
	glob      pattern // the text from there on; nil: none
	not       bool
	directory bool
	name      bool // matches names at any depth; otherwise paths from base on
}

// List is the lines of one ignore file and its directory ("": the root).
type List struct {
	Base  string
	Lines []string
}

// Rules are all rules of a project.
type Rules struct {
	byBase  map[string][]numbered
	tracked map[string]bool // true: tracked; false: contains tracked paths
}

type numbered struct {
	number int
	rule   rule
}

// Chain is the list of rules for one directory, the strongest last.
type Chain struct {
	rules []numbered
	left  bool // the directory is ignored, and entered only for tracked paths below
}

// New parses rules, the weaker lists first, and the tracked paths, which are never ignored.
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

// parse reads one line of an ignore file: comment, trailing blanks, negation, directory mark, leading slash.
func parse(line string) (one rule, is bool) {
	if line == "" || line[0] == '#' {
		return one, false
	}
	text := trimBlanks(strings.TrimSuffix(line, "\r"))
	text, one.not = strings.CutPrefix(text, "!")
	text, one.directory = strings.CutSuffix(text, "/")
	one.name = !strings.Contains(text, "/")
	text = strings.TrimPrefix(text, "/")
	cut := strings.IndexAny(text, special)
	if cut < 0 {
		one.literal = text
		return one, true
	}
	// git splits here, too: in "/a**/b", the rest "**/b" is a separate pattern, and "ax/y/b" matches.
	one.literal = text[:cut]
	one.glob, is = compile(text[cut:])
	return one, is
}

// trimBlanks removes trailing blanks, except a first one that a backslash quotes.
func trimBlanks(s string) string {
	trimmed := strings.TrimRight(s, " ")
	backslashes := len(trimmed) - len(strings.TrimRight(trimmed, `\`))
	if len(trimmed) < len(s) && backslashes%2 == 1 {
		return s[:len(trimmed)+1]
	}
	return trimmed
}

func (r *rule) match(path, name string, directory bool, left *int) bool {
	if r.directory && !directory {
		return false
	}
	if !r.name {
		name = path[len(r.base):]
	}
	rest, is := strings.CutPrefix(name, r.literal)
	if !is || r.glob == nil {
		return is && rest == ""
	}
	return r.glob.match(rest, left)
}

// Root returns the chain of the root.
func (r *Rules) Root() *Chain { return &Chain{rules: r.byBase[""]} }

// Below returns the chain of a directory with verdict Kept or Descend from the chain of its parent.
func (r *Rules) Below(above *Chain, path string, v Verdict) *Chain {
	own, left := r.byBase[path], v == Descend
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

// Judge decides about a path in the directory of a chain; name is its last component.
func (r *Rules) Judge(in *Chain, path, name string, directory bool) Verdict {
	itself, known := r.tracked[path]
	switch {
	case known && itself:
		return Kept
	case !in.left && !in.matches(path, name, directory):
		return Kept
	case known && directory:
		return Descend
	}
	return Ignored
}

// matches applies the last matching rule. A path whose comparison takes too many steps is not ignored: changes in it
// stay visible.
func (c *Chain) matches(path, name string, directory bool) bool {
	left := maxSteps
	for i := len(c.rules) - 1; i >= 0 && left > 0; i-- {
		if one := &c.rules[i].rule; one.match(path, name, directory, &left) {
			return !one.not
		}
	}
	return false
}
