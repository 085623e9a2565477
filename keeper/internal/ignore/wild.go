package ignore

import "strings"

// steps bounds the work for one path: what takes more does not match. A pattern with many `**` could take for ever
// otherwise, and the names are the inside's.
const steps = 200_000

type outcome int

const (
	match outcome = iota
	noMatch
	abort         // the text is used up: no shorter star helps
	abortStarStar // a slash is in the way: only a `**` further out helps
)

// wild is git's own way to match (wildmatch.c), step by step, because its oddities are what projects rely on.
type wild struct {
	paths bool // a slash is matched by a slash or `**` only
	left  int
}

func matches(pattern, text string, paths bool, left *int) bool {
	w := wild{paths, *left}
	found := w.do(pattern, text)
	*left = w.left
	return found == match
}

// at gives 0 beyond the end, as C's strings have it. No pattern and no name holds a zero byte.
func at(s string, i int) byte {
	if i < 0 || i >= len(s) {
		return 0
	}
	return s[i]
}

func (w *wild) do(pattern, text string) outcome {
	t := 0
	for p := 0; p < len(pattern); p++ {
		if w.left--; w.left < 0 {
			return abort
		}
		c := at(text, t)
		if c == 0 && pattern[p] != '*' {
			return abort
		}
		switch pattern[p] {
		case '*':
			return w.star(pattern, text, p, t)
		case '?':
			if w.paths && c == '/' {
				return noMatch
			}
		case '[':
			end, in, broken := set(pattern, p, c)
			if broken {
				return abort
			}
			if !in || w.paths && c == '/' {
				return noMatch
			}
			p = end
		case '\\':
			p++
			if at(pattern, p) != c {
				return noMatch
			}
		default:
			if pattern[p] != c {
				return noMatch
			}
		}
		t++
	}
	if t < len(text) {
		return noMatch
	}
	return match
}

// star goes on from a `*` or `**` at p.
func (w *wild) star(pattern, text string, p, t int) outcome {
	before := p - 1
	stars := 0
	for ; at(pattern, p) == '*'; p++ {
		stars++
	}
	slashes := !w.paths
	if w.paths && stars > 1 && (before < 0 || pattern[before] == '/') && segmentEnds(pattern, p) {
		// `a/**/b` is also `a/b`
		if at(pattern, p) == '/' && w.do(pattern[p+1:], text[t:]) == match {
			return match
		}
		slashes = true
	}
	if p == len(pattern) {
		if !slashes && strings.IndexByte(text[t:], '/') >= 0 {
			return noMatch
		}
		return match
	}
	if !slashes && pattern[p] == '/' { // one whole name
		slash := strings.IndexByte(text[t:], '/')
		if slash < 0 {
			return noMatch
		}
		return w.do(pattern[p+1:], text[t+slash+1:])
	}
	return w.longer(pattern[p:], text, t, slashes)
}

func segmentEnds(pattern string, p int) bool {
	next := at(pattern, p)
	return next == 0 || next == '/' || next == '\\' && at(pattern, p+1) == '/'
}

// longer tries a star for nothing, one character, two …
func (w *wild) longer(rest, text string, t int, slashes bool) outcome {
	for ; t < len(text); t++ {
		if !strings.ContainsRune(special, rune(rest[0])) {
			for t < len(text) && text[t] != rest[0] && (slashes || text[t] != '/') {
				t++
			}
			if at(text, t) != rest[0] {
				return noMatch
			}
		}
		found := w.do(rest, text[t:])
		switch {
		case found != noMatch:
			if !slashes || found != abortStarStar {
				return found
			}
		case !slashes && text[t] == '/':
			return abortStarStar
		}
	}
	return abort
}

// set reads the brackets at p: where they end, whether c is among them; broken: they are no set.
func set(pattern string, p int, c byte) (end int, in, broken bool) {
	p++
	not := at(pattern, p) == '!' || at(pattern, p) == '^'
	if not {
		p++
	}
	var before byte
	for first := true; first || at(pattern, p) != ']'; p++ {
		first = false
		last, found := 0, false
		if last, before, found = member(pattern, p, before, c); last < 0 {
			return 0, false, true
		}
		p, in = last, in || found
	}
	return p, in != not, false
}

// member reads one member of a set, whether c is it, where its last character is (-1: it is broken), and which one a range
// could begin with.
func member(pattern string, p int, before, c byte) (last int, one byte, in bool) {
	one = at(pattern, p)
	switch {
	case one == 0:
		return -1, 0, false
	case one == '\\':
		if one = at(pattern, p+1); one == 0 {
			return -1, 0, false
		}
		return p + 1, one, c == one
	case one == '-' && before != 0 && at(pattern, p+1) != 0 && at(pattern, p+1) != ']':
		p++
		if one = pattern[p]; one == '\\' {
			p++
			if one = at(pattern, p); one == 0 {
				return -1, 0, false
			}
		}
		return p, 0, before <= c && c <= one
	case one == '[' && at(pattern, p+1) == ':':
		return class(pattern, p, c)
	}
	return p, one, c == one
}

// class reads a member like [:alpha:], or a bracket that looks like the beginning of one.
func class(pattern string, p int, c byte) (last int, one byte, in bool) {
	end := strings.IndexByte(pattern[p+2:], ']')
	if end < 0 {
		return -1, 0, false
	}
	name, named := strings.CutSuffix(pattern[p+2:p+2+end], ":")
	test := classes[name]
	switch {
	case !named:
		return p, '[', c == '['
	case test == nil:
		return -1, 0, false
	}
	return p + 2 + end, 0, test(c)
}

func digit(c byte) bool { return c >= '0' && c <= '9' }
func upper(c byte) bool { return c >= 'A' && c <= 'Z' }
func lower(c byte) bool { return c >= 'a' && c <= 'z' }
func alpha(c byte) bool { return upper(c) || lower(c) }
func graph(c byte) bool { return c > ' ' && c < 0x7f }

var classes = map[string]func(byte) bool{
	"alnum":  func(c byte) bool { return alpha(c) || digit(c) },
	"alpha":  alpha,
	"blank":  func(c byte) bool { return c == ' ' || c == '\t' },
	"cntrl":  func(c byte) bool { return c < ' ' || c == 0x7f },
	"digit":  digit,
	"graph":  graph,
	"lower":  lower,
	"print":  func(c byte) bool { return c == ' ' || graph(c) },
	"punct":  func(c byte) bool { return graph(c) && !alpha(c) && !digit(c) },
	"space":  func(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' },
	"upper":  upper,
	"xdigit": func(c byte) bool { return digit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' },
}
