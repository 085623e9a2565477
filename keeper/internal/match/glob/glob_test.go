package glob

import (
	"strings"
	"testing"
)

func TestPatternsMatchLikeShells(t *testing.T) {
	for _, c := range []struct {
		pattern string
		yes, no string // paths, separated by blanks
	}{
		{"*.py", "a.py b.c.py", ".a.py a.pyc d/a.py .py"},
		{"**/*.py", "a.py d/a.py d/e/a.py", "a.c d.py/a.c .git/a.py"},
		{"src/**", "src/a src/a/b", "src a/src"},
		{"src/**/test/*.go", "src/test/a.go src/a/b/test/c.go", "src/test/a/c.go test/a.go"},
		{"**/a/**/b", "a/b x/a/y/z/b a/a/b", "a x/b"},
		{"?.txt", "a.txt ü.txt", "ab.txt .txt"},
		{"[a-c]x[!0-9]", "axy bx-", "dxy ax1 ax"},
		{"[]a]", "] a", "b"},
		{"[a", "[a", "a"},
		{"*.{ts,tsx}", "a.ts b.tsx", "a.t a.tss"},
		{"{a,b/{c,d}}/*", "a/x b/c/x b/d/y", "b/x c/x"},
		{".github/*", ".github/x", ".github/.x github/x"},
		{".*", ".a", "a"},
		{"a\\*b", "a*b", "axb"},
		{"*a*a*a*b", "aaab xaxaxab", "aaa aaaa"},
		{"./a//b", "a/b", "a"},
	} {
		p, err := Parse(c.pattern, false)
		if err != nil {
			t.Fatalf("%s: %v", c.pattern, err)
		}
		for _, path := range strings.Fields(c.yes) {
			if !p.Matches(path) {
				t.Errorf("%s does not match %s", c.pattern, path)
			}
		}
		for _, path := range strings.Fields(c.no) {
			if p.Matches(path) {
				t.Errorf("%s matches %s", c.pattern, path)
			}
		}
	}
}

func TestHiddenNamesMatchOnRequest(t *testing.T) {
	p, err := Parse("**/*", true)
	if err != nil || !p.Matches(".git/config") {
		t.Error("**/* with hidden does not match .git/config")
	}
}

func TestNonUTF8BytesMatch(t *testing.T) {
	p, _ := Parse("*\xff?", false)
	if !p.Matches("a\xff\xfe") || p.Matches("a\xfe\xfe") {
		t.Error("invalid UTF-8 is not compared by bytes")
	}
}

func TestInvalidPatternsAreRejected(t *testing.T) {
	for _, pattern := range []string{
		"", "/", ".", "../a", "a/..", "a\x00", "{a", "{{a,b}", strings.Repeat("a", 2000), strings.Repeat("a/", 100),
		strings.Repeat("{a,b}", 10), "a\\",
	} {
		if p, err := Parse(pattern, false); err == nil {
			t.Errorf("%q was accepted as %v", pattern, p)
		}
	}
}

func TestHostilePatternIsFast(t *testing.T) {
	p, err := Parse(strings.Repeat("*a", 400)+"b", false)
	if err != nil {
		t.Fatal(err)
	}
	if p.Matches(strings.Repeat("a", 255)) {
		t.Error("matched")
	}
}

func TestDirectoriesWithoutMatchesAreNotEntered(t *testing.T) {
	p, _ := Parse("src/*.go", false)
	if state, _ := p.Next(p.Begin(), "docs"); state != nil {
		t.Error("docs would be entered")
	}
	state, whole := p.Next(p.Begin(), "src")
	if state == nil || whole {
		t.Error("src would not be entered")
	}
	if state, whole = p.Next(state, "a.go"); state != nil || !whole {
		t.Error("src/a.go would be entered, or does not match")
	}
}
