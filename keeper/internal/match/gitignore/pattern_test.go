package gitignore

import (
	"math/rand"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// compareWithGit writes each rule into a separate directory and asks git about the same paths in all of them. The
// paths do not exist: git takes the last component for a file and the others for directories.
func compareWithGit(t *testing.T, rules, paths []string) {
	t.Helper()
	p := &project{t: t, root: t.TempDir()}
	p.git("init", "-q")
	var all []string
	for i, text := range rules {
		base := "d" + strconv.Itoa(i)
		if err := os.Mkdir(filepath.Join(p.root, base), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(p.root, base, ".gitignore"), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		p.lists = append(p.lists, List{base, strings.Split(text, "\n")})
		for _, path := range paths {
			all = append(all, base+"/"+path)
		}
	}
	git := map[string]bool{}
	for _, path := range p.gitWith(strings.Join(all, "\x00"), "check-ignore", "-z", "--stdin", "--no-index") {
		git[path] = true
	}
	r, failures := New(p.lists, nil), 0
	for i := range all {
		if got := ignored(r, all[i]); got != git[all[i]] && failures < 20 {
			failures++
			t.Errorf("rule %q, path %q: ignored is %v, git says %v", rules[i/len(paths)], paths[i%len(paths)], got, git[all[i]])
		}
	}
	if len(git) == 0 || len(git) == len(all) {
		t.Errorf("git ignores %d of %d paths", len(git), len(all))
	}
}

// ignored judges a file from the root down.
func ignored(r *Rules, path string) bool {
	chain := r.Root()
	for start := 0; ; {
		cut := strings.IndexByte(path[start:], '/')
		if cut < 0 {
			return r.Judge(chain, path, path[start:], false) != Kept
		}
		above := path[:start+cut]
		if r.Judge(chain, above, path[start:start+cut], true) != Kept {
			return true
		}
		chain = r.Below(chain, above, Kept)
		start += cut + 1
	}
}

// tricky are rules that the documentation names, or that it leaves open.
var tricky = []string{
	"a", "/a", "a/", "/a/", "a/b", "/a/b", "a/b/", "foo/", "/foo/", "/", "//", "//a", "a//b", "a//", "!", "#a",
	"\\#a", "!a", "\\!a",
	"*\n!a", "*\n!b/", "a*\n!ab", "*/b\n!a/b", "a/\n!a/b", "a/**\n!a/b", "*\n![a", "/*\n!/a", "**\n!**/b",
	"a ", "a  ", "a\\ ", "a\\  ", "a\\\\ ", "a\\ \\ ", "\\ ", " ", " a", "a b", "a\t", "a\r",
	"*", "**", "***", "/*", "/**", "/***", "*/", "**/", "/**/", "*/*", "*/**", "**/*", "**/**", "***/***", "*/*/",
	"a*", "*a", "*a*", "a*b", "*/b", "*.o",
	"a/*", "a/**", "a/***", "a/**/", "a/**/b", "a/***/b", "a/**/**/b", "a/**/*", "a/*/**", "a/**/*/b", "a/*/**/b",
	"?/**", "?/**/", "?/**/b", "?/**/**/b", "?/**/?",
	"**/a", "**/a/b", "**/a/**", "**/a/**/b", "**/a/*/b", "***/a", "**//a", "?/**//b", "**/a//", "/a**//", "?**//",
	"/**//", "a/**//", "?/**//",
	"a**b", "a**", "**a", "**foo", "/**foo", "a/**b", "a/b**", "a**/b", "/a**/b", "/a**", "/[a]**/b", "/[a]**",
	"?/a**/b", "?/**a/b", "a/**a**/b", "/a***/b", "a**/**b",
	"?", "??", "/?", "?/?", "a?b", "a/?", "a?", "?b/", "a?/b", "[a]?*",
	"\\a", "\\*", "\\?", "\\[a]", "a\\", "*\\", "\\", "\\\\", "a\\*b", "\\**", "*\\*", "\\a\\b", "\\/a", "a\\/b",
	"?\\/b", "?\\/**", "?\\/**/b", "?\\/**\\/b", "?/**\\/b",
	"**\\/b", "**\\/", "a/**\\/", "\\/**", "*\\/b", "a\\", "a\\/", "?\\/", "**\\/**", "?/**\\/**/b", "**\\/**\\/b",
	"A", "[A-Z]", "[[:upper:]]", "[[:lower:]]", "FOO", "fo[O]", "[a-z]",
	"[a]", "[ab]", "[a", "[a-", "[a-b", "[", "[]", "[]a]", "[]", "[]]", "[!]a]", "[!]", "[!]]", "[!a]", "[^a]",
	"[!a-c]", "[^a-c]", "[!!]", "[^^]", "[a!]",
	"x[/y", "[a/b]b", "?/[a/b]", "[!a/b]", "a[/]b", "a[!a]b", "a[^/]b", "a[.-0]b", "*[/]b", "*[!a]b", "[a]/[b]",
	"[a/b", "[a/", "[a]*/b", "a/[b]/**", "**/[a]/b", "[[:alpha:]/]",
}

var trickyPaths = []string{
	"a", "b", "ab", "a/b", "a/a", "b/a", "a/b/a", "a/a/b", "a/x/b", "a/x/y/b", "ax/b", "ax/y/b", "axb", "a/xb",
	"x/a/b", "x/y/a/b", "a/b/c", "b/b", "b/x/b", "b/x/y/b",
	"foo", "foo/x", "x/foo", "x/foo/y", "xfoo", "x/yfoo", "A", "Foo", "FOO", "a ", "a  ", " a", "a b", " ", "a\t",
	"a\r", "#a", "!a", "!", "#", "*", "a*b", "**", "?",
	"a.o", "x/a.o", ".o", "[a]", "[a", "[", "]", "a]", "a-", "-", "\\", "a\\", "\\a", "a\\b", "a/\\", "ü", "\xff",
	"a\nb", "a/a/a/a/b", "aab", "abab", "a/bb/b", "c/d/e/f/g",
	"ab/c", "aa/b", "x/ab/c", "x/ab/b", "x/ba/b", "a/ba", "a/b/a/b", "aaaa", "x", "z/b",
}

func TestTrickyPatternsMatchLikeGit(t *testing.T) {
	repositories(t)
	compareWithGit(t, tricky, trickyPaths)
}

func TestBracketExpressionsMatchLikeGit(t *testing.T) {
	repositories(t)
	rules := []string{
		"[]a]", "[!a-c]", "[^a-c]", "[!]a]", "[^]a]", "[]-a]", "[]-]", "[--0]", "[---]", "[--]", "[-]", "[+--]",
		"[a-c-e]", "[a-c--z]", "[a--z]", "[z-a]", "[z-a-c]", "[a-]", "[-a]",
		"[!-a]", "[!a-]", "[!!]", "[^^]", "[!^]", "[^!]", "[a^]", "[,-.]", "[a-\\]]", "[a-\\]-c]", "[\\]a]", "[\\a-\\c]",
		"[a-\\z]", "[\\--0]", "[a\\-z]", "[a\\]", "[\\]", "[\\\\]", "[!\\]]",
		"[\\!a]", "[\\^a]", "[a-[:alpha:]]", "[+-[:digit:]]", "[[:alpha:]-z]", "[[:digit:]-[:alpha:]]", "[a[:digit:]-z]",
		"[[:nope:]]", "[a[:nope:]]", "[![:nope:]]", "[[:x]", "[[:]", "[[:]]", "[[::]]",
		"[[:alpha:x]]", "[[:alpha:]", "[[:ALPHA:]]", "[[: alpha:]]", "[[:alpha\\:]]", "[[=a=]]", "[[.a.]]", "[[a]",
		"[[]", "[[-a]", "[a-[b]", "[a-[:b]", "[Z-[:b]", "[[:-z]", "[[:\\]]",
		"[:alpha:]", "[[:digit:][:upper:]]", "[![:digit:]a-z]", "[\x80-\xff]", "[!\x80-\xff]", "[\xc3]", "[\x01-\x1f]",
		"?", "*", "[a/b]", "[!/]", "[.-0]", "[[:word:]]", "[[:ascii:]]",
	}
	for name := range classes {
		rules = append(rules, "[[:"+name+":]]", "[![:"+name+":]]")
	}
	var paths []string
	for c := 1; c < 256; c++ {
		if c != '/' {
			paths = append(paths, "x/"+string([]byte{byte(c)})+"]", string([]byte{byte(c)})+"x")
		}
		if c != '/' && c != '.' {
			paths = append(paths, string([]byte{byte(c)}))
		}
	}
	compareWithGit(t, rules, paths)
	for i := range rules {
		rules[i] += "]"
	}
	compareWithGit(t, rules, paths)
}

func TestRandomPatternsMatchLikeGit(t *testing.T) {
	for seed := range repositories(t) {
		pick := rand.New(rand.NewSource(seed))
		random := func(length int, of ...string) string {
			var b strings.Builder
			for i := 1 + pick.Intn(length); i > 0; i-- {
				b.WriteString(of[pick.Intn(len(of))])
			}
			return b.String()
		}
		var rules, paths []string
		for range 80 {
			rules = append(rules, random(9,
				"a", "a", "b", "/", "/", "*", "**", "**/", "/**", "?", "[", "]", "[ab]", "[!a]", "-", "!", "^", "\\", "[:", ":]",
				"[[:alpha:]]", " ",
			))
			path := strings.Trim(random(9, "a", "a", "b", "/", "-", "]", "\\", " "), "/")
			for strings.Contains(path, "//") {
				path = strings.ReplaceAll(path, "//", "/")
			}
			if path != "" {
				paths = append(paths, path)
			}
		}
		compareWithGit(t, rules, paths)
	}
}

// steps counts the comparisons of one pattern.
func steps(t *testing.T, text, path string) int {
	t.Helper()
	p, is := compile(text)
	if !is {
		t.Fatalf("pattern %q is invalid", text)
	}
	left := 1 << 40
	p.match(path, &left)
	return 1<<40 - left
}

func TestHostilePatternNeedsFewSteps(t *testing.T) {
	for _, c := range []struct{ text, path string }{
		{strings.Repeat("*a", 100) + "b", strings.Repeat("a", 255)},
		{"*" + strings.Repeat("a", 120) + "b", strings.Repeat("a", 255)},
		{strings.Repeat("*", 1000) + "b", strings.Repeat("a", 255)},
		{strings.Repeat("*?", 120) + "b", strings.Repeat("a", 255)},
		{strings.Repeat("*[!b]", 60) + "b", strings.Repeat("a", 255)},
		{strings.Repeat("**/a/", 100) + "b", strings.Repeat("a/", 2000) + "a"},
		{strings.Repeat("**/", 500) + "b", strings.Repeat("a/", 2000) + "a"},
		{strings.Repeat("**/*/", 100) + "b", strings.Repeat("a/", 2000) + "a"},
		{strings.Repeat("**/*a*a*b/", 20) + "b", strings.Repeat(strings.Repeat("a", 100)+"/", 40) + "a"},
		{"**/" + strings.Repeat("a/", 500) + "b", strings.Repeat("a/", 2000) + "a"},
		{strings.Repeat("**\\/", 200) + "b", strings.Repeat("a/", 2000) + "a"},
		{"**/" + strings.Repeat("*a*/", 100) + "**/b", strings.Repeat("aa/", 1000) + "a"},
	} {
		for _, text := range []string{c.text, c.text + "*", c.text + "/**"} {
			if n, limit := steps(t, text, c.path), (len(text)+2)*(len(c.path)+2); n > limit {
				t.Errorf("pattern %.20q… of %d bytes, path of %d: %d steps, more than %d", text, len(text), len(c.path), n, limit)
			}
		}
	}
}

func TestStepsGrowWithTheProductOfTheLengths(t *testing.T) {
	pick := rand.New(rand.NewSource(1))
	for range 20_000 {
		var text, path strings.Builder
		for i := pick.Intn(40); i > 0; i-- {
			text.WriteString([]string{"a", "*", "**/", "/", "?", "b"}[pick.Intn(6)])
		}
		for i := pick.Intn(60); i > 0; i-- {
			path.WriteString([]string{"a", "a", "/", "b"}[pick.Intn(4)])
		}
		if n, limit := steps(t, text.String(), path.String()), (text.Len()+2)*(path.Len()+2); n > limit {
			t.Fatalf("pattern %q, path %q: %d steps, more than %d", &text, &path, n, limit)
		}
	}
}

func TestTooManyStepsKeepThePath(t *testing.T) {
	hostile := "*" + strings.Repeat("a", 120) + "b*"
	p, _ := compile(hostile)
	if left := 1000; p.match(strings.Repeat("a", 100_000), &left) || left < 0 {
		t.Errorf("%d steps more than allowed", -left)
	}
	var lines []string
	for i := 0; i*120*120 < 2*maxSteps; i++ {
		lines = append(lines, hostile)
	}
	name := strings.Repeat("a", 255)
	for _, weaker := range []string{"*", "a*", name} {
		r := New([]List{{"", append([]string{weaker}, lines...)}}, nil)
		if v := r.Judge(r.Root(), name, name, false); v != Kept {
			t.Errorf("rule %.10q decided after too many steps: %d", weaker, v)
		}
		if v := r.Judge(r.Root(), "ab", "ab", false); (v == Ignored) != (weaker != name) {
			t.Errorf("rule %.10q: %d", weaker, v)
		}
	}
}
