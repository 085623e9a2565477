package gitignore

import "strings"

// pattern is the part of a rule from its first special character on. It is a list of components, as in a path.
//
// This matcher is written from the gitignore documentation and from the answers of `git check-ignore`, not from git's
// source. The documentation leaves open, and git answers:
//
//   - More than two asterisks are the same as two.
//   - "\/" separates components, too. A "**" in front of it matches one or more directories, not zero.
//   - A slash in a bracket expression does not separate components, and matches nothing.
//   - A pattern with an unterminated bracket expression, an unknown class or a backslash at its end matches nothing.
type pattern []component

// component matches one component of a path, or any number of them.
type component struct {
	any    bool // "**" as a whole component: zero or more components
	tokens []*set
	least  int // length of the shortest name that matches
	tail   int // number of tokens behind the last asterisk; without any, all
}

// many is the token for an asterisk: any bytes. Every other token matches one byte of a set.
var many *set

// set is a set of bytes.
type set [4]uint64

func (s *set) add(c byte)      { s[c>>6] |= 1 << (c & 63) }
func (s *set) has(c byte) bool { return s[c>>6]>>(c&63)&1 != 0 }

func (s *set) addRange(low, high byte) {
	for c := int(low); c <= int(high); c++ {
		s.add(byte(c))
	}
}

func (s *set) invert() {
	for i := range s {
		s[i] = ^s[i]
	}
}

// single holds the sets of one byte each, anyByte the set for "?".
var (
	single  = singles()
	anyByte = &set{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}
)

func singles() *[256]set {
	all := &[256]set{}
	for c := range all {
		all[c].add(byte(c))
	}
	return all
}

// classes are the POSIX classes of the C locale as pairs of a first and a last byte. As in git, "space" lacks the
// vertical tab and the form feed.
var classes = map[string]string{
	"alnum":  "09AZaz",
	"alpha":  "AZaz",
	"blank":  "\t\t  ",
	"cntrl":  "\x00\x1f\x7f\x7f",
	"digit":  "09",
	"graph":  "!~",
	"lower":  "az",
	"print":  " ~",
	"punct":  "!/:@[`{~",
	"space":  "\t\n\r\r  ",
	"upper":  "AZ",
	"xdigit": "09AFaf",
}

// compile parses a pattern. It returns false if the pattern can match nothing.
func compile(text string) (pattern, bool) {
	var all pattern
	var now component
	for len(text) > 0 {
		first := text[0]
		switch {
		case first == '/' || strings.HasPrefix(text, `\/`):
			all, now = append(all, now), component{}
			text = strings.TrimPrefix(text, `\`)[1:]
		case first == '*':
			rest := strings.TrimLeft(text, "*")
			whole := len(now.tokens) == 0 && len(text)-len(rest) > 1
			if whole && strings.HasPrefix(rest, "/") {
				all = append(all, component{any: true})
				rest = rest[1:]
			} else {
				now.tokens, now.tail = append(now.tokens, many), 0
				if whole && (rest == "" || strings.HasPrefix(rest, `\/`)) { // one or more components
					all = append(all, component{any: true})
				}
			}
			text = rest
		default:
			one, rest, is := parseByte(text)
			if !is {
				return nil, false
			}
			now.tokens = append(now.tokens, one)
			now.least, now.tail = now.least+1, now.tail+1
			text = rest
		}
	}
	return append(all, now), true
}

// parseByte reads the token of one byte and returns the rest of the text.
func parseByte(text string) (one *set, rest string, is bool) {
	switch text[0] {
	case '?':
		return anyByte, text[1:], true
	case '[':
		return parseBrackets(text[1:])
	}
	c, rest, is := unescape(text)
	return &single[c], rest, is
}

// unescape reads one byte, which a backslash may quote.
func unescape(text string) (c byte, rest string, is bool) {
	if text != "" && text[0] == '\\' {
		text = text[1:]
	}
	if text == "" {
		return 0, "", false
	}
	return text[0], text[1:], true
}

// parseBrackets reads a bracket expression after its '['.
func parseBrackets(text string) (*set, string, bool) {
	in := &set{}
	body := strings.TrimPrefix(text, "!")
	if len(body) == len(text) {
		body = strings.TrimPrefix(text, "^")
	}
	negated := len(body) < len(text)
	low, isLow := byte(0), false // the byte in front, if a range can start there
	for rest := body; rest != ""; {
		if rest[0] == ']' && len(rest) < len(body) {
			if negated {
				in.invert()
			}
			return in, rest[1:], true
		}
		if name, after, is := cutClass(rest); is {
			ranges, known := classes[name]
			if !known {
				break
			}
			for ; ranges != ""; ranges = ranges[2:] {
				in.addRange(ranges[0], ranges[1])
			}
			rest, isLow = after, false
			continue
		}
		ranged := isLow && rest[0] == '-' && !strings.HasPrefix(rest, "-]")
		if ranged {
			rest = rest[1:]
		}
		c, after, is := unescape(rest)
		if !is {
			break
		}
		if ranged {
			in.addRange(low, c)
		} else {
			in.add(c)
		}
		low, isLow, rest = c, !ranged, after
	}
	return nil, "", false
}

// cutClass reads "[:name:]". The name ends at the first ']', and without a colon in front of it, '[' is a plain byte.
func cutClass(text string) (name, rest string, is bool) {
	if !strings.HasPrefix(text, "[:") {
		return "", "", false
	}
	inner, rest, closed := strings.Cut(text[2:], "]")
	name, is = strings.CutSuffix(inner, ":")
	return name, rest, closed && is
}

// position is a place between the components of a path.
type position struct {
	rest string
	end  bool // behind the last component; rest is empty
}

// match compares a path. left is the number of steps that remain; without any left, nothing matches.
//
// Only the last "**" and, within a component, the last "*" ever take more: if the components in front of it match at
// one place, a later place leaves fewer choices, never more. The steps are therefore at most the product of the
// lengths.
func (p pattern) match(path string, left *int) bool {
	at := position{rest: path}
	retry, retryAt := -1, position{}
	for i := 0; ; {
		if i < len(p) && p[i].any {
			i++
			retry, retryAt = i, at
			continue
		}
		if i == len(p) && at.end {
			return true
		}
		if i < len(p) && !at.end {
			name, rest, more := strings.Cut(at.rest, "/")
			if p[i].match(name, left) {
				i, at = i+1, position{rest, !more}
				continue
			}
		}
		if retry < 0 || at.end || *left <= 0 {
			return false
		}
		_, rest, more := strings.Cut(retryAt.rest, "/")
		retryAt = position{rest, !more}
		i, at = retry, retryAt
	}
}

// match compares one component of a path. The bytes behind the last asterisk come first: most names differ there.
func (c *component) match(name string, left *int) bool {
	*left--
	tokens := c.tokens
	if len(name) < c.least || len(name) > c.least && c.tail == len(tokens) {
		return false
	}
	for range c.tail {
		*left--
		if !tokens[len(tokens)-1].has(name[len(name)-1]) {
			return false
		}
		tokens, name = tokens[:len(tokens)-1], name[:len(name)-1]
	}
	i, at := 0, 0
	retry, retryAt := -1, 0
	for ; i < len(tokens) && *left > 0; *left-- {
		switch {
		case tokens[i] == many:
			i++
			retry, retryAt = i, at
		case at == len(name):
			return false
		case tokens[i].has(name[at]):
			i, at = i+1, at+1
		case retry < 0:
			return false
		default:
			retryAt++
			i, at = retry, retryAt
		}
	}
	return i == len(tokens)
}
