package glob

import "unicode/utf8"

// match reports whether a name matches one segment. It tries a `*` as short as possible and then longer; only the last
// one must be remembered, so the time is at most quadratic.
func match(segment, name string) bool {
	star, from := -1, 0
	s, n := 0, 0
	for n < len(name) {
		if s < len(segment) && segment[s] == '*' {
			star, from = s, n
			s++
			continue
		}
		if s < len(segment) {
			if width, used := one(segment[s:], name[n:]); used > 0 {
				s, n = s+width, n+used
				continue
			}
		}
		if star < 0 {
			return false
		}
		_, used := utf8.DecodeRuneInString(name[from:])
		from += used
		s, n = star+1, from
	}
	for s < len(segment) && segment[s] == '*' {
		s++
	}
	return s == len(segment)
}

// one matches one character and returns the lengths consumed in the segment and in the name; 0: no match.
func one(segment, name string) (width, used int) {
	r, size := utf8.DecodeRuneInString(name)
	switch c := segment[0]; {
	case c == '?':
		return 1, size
	case c == '[' && set(segment) > 0:
		width = set(segment)
		if within(segment[1:width-1], r) {
			return width, size
		}
		return width, 0
	case c == '\\' && len(segment) > 1:
		if segment[1] == name[0] {
			return 2, 1
		}
	case c == name[0]:
		return 1, 1
	}
	return 1, 0
}

// set returns the length of the set at the start of a segment; 0: the bracket is never closed and stands for itself.
func set(segment string) int {
	i := 1
	if i < len(segment) && (segment[i] == '!' || segment[i] == '^') {
		i++
	}
	for first := i; i < len(segment) && segment[i] != '/'; i++ {
		if segment[i] == ']' && i > first {
			return i + 1
		}
	}
	return 0
}

func within(set string, r rune) bool {
	not := set[0] == '!' || set[0] == '^'
	if not {
		set = set[1:]
	}
	chars := []rune(set)
	for i := 0; i < len(chars); i++ {
		low, high := chars[i], chars[i]
		if i+2 < len(chars) && chars[i+1] == '-' {
			high = chars[i+2]
			i += 2
		}
		if low <= r && r <= high {
			return !not
		}
	}
	return not
}

func wellFormed(segment string) bool {
	return segment[len(segment)-1] != '\\' || len(segment) > 1 && segment[len(segment)-2] == '\\'
}
