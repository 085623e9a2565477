package filter

import (
	"strings"
	"testing"
)

func TestPatternsMatchPaths(t *testing.T) {
	for _, c := range []struct {
		pattern, path   string
		directory, want bool
	}{
		{"*.pyc", "a.pyc", false, true}, {"*.pyc", "a/b/c.pyc", false, true}, {"*.pyc", "a.py", false, false},
		{"*.pyc", "x.pyc/y", false, true}, {"node_modules", "a/node_modules/b/c", false, true},
		{"a/b", "a/b", false, true}, {"a/b", "x/a/b", false, false}, {"/b", "b", false, true}, {"/b", "a/b", false, false},
		{"a/*", "a/b/c", false, true}, {"a/*.c", "a/b/x.c", false, false}, {"a/**/x.c", "a/x.c", false, true},
		{"a/**/x.c", "a/b/c/x.c", false, true}, {"**/x", "x", false, true}, {"a/**", "a", true, false},
		{"a/**", "a/b", false, true}, {"b/", "a/b", false, false}, {"b/", "a/b", true, true}, {"b/", "a/b/c", false, true},
		{"[!a]x", "bx", false, true}, {"[!a]x", "ax", false, false}, {"?", "ü", false, true}, {`\*`, "*", false, true},
		{`\*`, "a", false, false}, {"a?c", "a/c", false, false}, {"*.{ts,tsx}", "a/b.tsx", false, true},
		{"{a,b/c}/d", "b/c/d/e", false, true}, {".*", ".git", true, true}, {"*", ".git", true, true}, {"[a", "[a", false, true},
		{"./a//b", "a/b", false, true},
	} {
		set, err := Parse([]string{c.pattern})
		if err != nil {
			t.Fatal(c.pattern, err)
		}
		if got := set.Match(c.path, c.directory); got != c.want {
			t.Errorf("%q on %q: %v", c.pattern, c.path, got)
		}
	}
}

func TestMatchLastChecksOnlyTheLastName(t *testing.T) {
	set, err := Parse([]string{"a"})
	if err != nil || set.MatchLast("a/b", false) || !set.MatchLast("b/a", false) || !set.Match("a/b", false) {
		t.Error(set, err)
	}
}

func TestInvalidPatternsAreRejected(t *testing.T) {
	for _, text := range []string{"", "/", "..", "a/../b", `a\`, "{a", strings.Repeat("a", 2000)} {
		if _, err := Parse([]string{text}); err == nil {
			t.Errorf("%.20q was accepted", text)
		}
	}
	if _, err := Parse(make([]string, maxPatterns+1)); err == nil {
		t.Error("too many patterns were accepted")
	}
}

func TestManyDoubleStarsAreFast(t *testing.T) {
	pattern := strings.Repeat("**/a/", 15) + "b"
	set, err := Parse([]string{pattern})
	if err != nil {
		t.Fatal(err)
	}
	deep := strings.Repeat("a/", 500)
	if set.MatchLast(deep+"c", false) || !set.MatchLast(deep+"b", false) {
		t.Error("wrong result for a deep path")
	}
}
