// Package grep finds the lines of a text that match a pattern. Its time is linear in the text for every pattern.
package grep

import (
	"bytes"
	"errors"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	maxPattern  = 1024
	minRequired = 2
	maxWeight   = 2000 // parts of a pattern with its repetitions expanded: each costs time at each byte
)

// Bad rejects a pattern.
type Bad struct{ reason string }

func (b *Bad) Error() string { return "pattern: " + b.reason }

// Matcher is a compiled pattern.
type Matcher struct {
	re    *regexp.Regexp
	plain []byte // not nil: the pattern is this literal text
	must  []byte // not nil: every matching line contains this
}

// Compile compiles a regular expression (RE2) or a literal text.
func Compile(pattern string, literal, ignoreCase bool) (*Matcher, error) {
	if pattern == "" || len(pattern) > maxPattern {
		return nil, &Bad{"it is empty or longer than 1,024 bytes"}
	}
	if strings.Contains(pattern, "\n") {
		return nil, &Bad{"it contains a line break, but each line is matched separately"}
	}
	if literal && !ignoreCase {
		return &Matcher{plain: []byte(pattern)}, nil
	}
	if literal {
		pattern = regexp.QuoteMeta(pattern)
	}
	flags := syntax.Perl &^ (syntax.OneLine | syntax.ClassNL) // a pattern sees one line at a time
	if ignoreCase {
		flags |= syntax.FoldCase
	}
	parsed, err := syntax.Parse(pattern, flags)
	if err != nil {
		var at *syntax.Error
		if errors.As(err, &at) {
			return nil, &Bad{string(at.Code) + ": " + at.Expr}
		}
		return nil, &Bad{err.Error()}
	}
	if weight(parsed) > maxWeight {
		return nil, &Bad{"it has too many repetitions"}
	}
	perLine(parsed)
	re, err := regexp.Compile(parsed.String())
	if err != nil {
		return nil, &Bad{err.Error()}
	}
	if prefix, whole := re.LiteralPrefix(); whole && prefix != "" {
		return &Matcher{plain: []byte(prefix)}, nil
	}
	m := &Matcher{re: re}
	if must := required(parsed); len(must) >= minRequired {
		m.must = []byte(must)
	}
	return m, nil
}

// required returns the longest text that every match contains. Searching for it first is many times faster.
func required(re *syntax.Regexp) (longest string) {
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase == 0 && !slices.Contains(re.Rune, utf8.RuneError) { // U+FFFD matches any invalid byte
			return string(re.Rune)
		}
	case syntax.OpRepeat:
		if re.Min > 0 {
			return required(re.Sub[0])
		}
	case syntax.OpCapture, syntax.OpPlus:
		return required(re.Sub[0])
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			if one := required(sub); len(one) > len(longest) {
				longest = one
			}
		}
	}
	return longest
}

// weight returns the size of the compiled program without compiling it.
func weight(re *syntax.Regexp) int {
	sum := 1 + len(re.Rune)/2
	if re.Op == syntax.OpLiteral {
		sum = len(re.Rune)
	}
	for _, sub := range re.Sub {
		if sum += weight(sub); sum > maxWeight {
			return sum
		}
	}
	if re.Op == syntax.OpRepeat {
		sum *= max(re.Min, re.Max, 1)
	}
	return sum
}

// perLine limits a pattern to one line: the ends of a text become those of a line, and nothing matches a line break. So
// a match never spans lines, and many lines can be searched at once.
func perLine(re *syntax.Regexp) {
	switch re.Op {
	case syntax.OpBeginText:
		re.Op = syntax.OpBeginLine
	case syntax.OpEndText:
		re.Op = syntax.OpEndLine
	case syntax.OpAnyChar:
		re.Op = syntax.OpAnyCharNotNL
	case syntax.OpLiteral:
		if slices.Contains(re.Rune, '\n') {
			re.Op, re.Rune = syntax.OpNoMatch, nil
		}
	case syntax.OpCharClass:
		re.Rune = without(re.Rune, '\n')
	}
	for _, sub := range re.Sub {
		perLine(sub)
	}
}

// without removes one character from a list of ranges.
func without(pairs []rune, r rune) (kept []rune) {
	for i := 0; i < len(pairs); i += 2 {
		low, high := pairs[i], pairs[i+1]
		if r < low || r > high {
			kept = append(kept, low, high)
			continue
		}
		if low < r {
			kept = append(kept, low, r-1)
		}
		if r < high {
			kept = append(kept, r+1, high)
		}
	}
	return kept
}

// find returns the position of the first match, or -1.
func (m *Matcher) find(lines []byte) int {
	if m.plain != nil {
		return bytes.Index(lines, m.plain)
	}
	if m.must != nil {
		return m.findLine(lines)
	}
	if found := m.re.FindIndex(lines); found != nil {
		return found[0]
	}
	return -1
}

// findLine examines only lines that contain the required text.
func (m *Matcher) findLine(lines []byte) int {
	for at := 0; at < len(lines); {
		i := bytes.Index(lines[at:], m.must)
		if i < 0 {
			return -1
		}
		from := bytes.LastIndexByte(lines[:at+i], '\n') + 1
		to := from + end(lines[from:])
		if found := m.re.FindIndex(lines[from:to]); found != nil {
			return from + found[0]
		}
		at = to + 1
	}
	return -1
}

// end returns the length of the first line.
func end(text []byte) int {
	if i := bytes.IndexByte(text, '\n'); i >= 0 {
		return i
	}
	return len(text)
}
