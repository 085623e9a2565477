package gitignore

import (
	"bytes"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
)

// project is a real repository with random rules and files.
type project struct {
	t     *testing.T
	root  string
	pick  *rand.Rand
	lists []List
	paths []string // directories end with a slash
}

var names = []string{
	"a", "b", "ab", "abc", "a.o", "b.o", ".a", "build", "foo", "foo.txt", "a b", "a ", "#a", "!a", "a*b", "[a]", "x\\y", "ü", "\xff",
	"A", "-", "a-c", "1", "a\nb",
}

func (p *project) one(of ...string) string { return of[p.pick.Intn(len(of))] }

// pattern makes a random rule.
func (p *project) pattern() string {
	var b strings.Builder
	if p.pick.Intn(5) == 0 {
		b.WriteString("!")
	}
	if p.pick.Intn(4) == 0 {
		b.WriteString("/")
	}
	for i := 1 + p.pick.Intn(3); i > 0; i-- {
		for j := 1 + p.pick.Intn(2); j > 0; j-- {
			b.WriteString(p.one(
				"a", "b", "*", "*", "**", "?", "*.o", "[a-c]", "[!a]", "[^b]", "[]a]", "[[:alpha:]]", "[[:nope:]]", "[a", "[a\\]b]",
				"\\*", "\\", "\\ ", "foo", "build", " ", ".", "#", "[[:punct:][:digit:]]", "[a-", "[--0]", "a*b*", "ü", "\xff", "[\xc3]", "[[:x]",
			))
		}
		if i > 1 {
			b.WriteString("/")
		}
	}
	b.WriteString(p.one("", "", "", "/", "/**", " ", "\\ ", "\t", "\r"))
	return strings.ReplaceAll(b.String(), "\n", "")
}

func (p *project) fill(below string, depth int) {
	for _, i := range p.pick.Perm(len(names))[:6] {
		path := below + names[i]
		if depth > 0 && p.pick.Intn(3) == 0 {
			if err := os.Mkdir(filepath.Join(p.root, path), 0o755); err != nil {
				p.t.Fatal(err)
			}
			p.paths = append(p.paths, path+"/")
			p.fill(path+"/", depth-1)
		} else if err := os.WriteFile(filepath.Join(p.root, path), nil, 0o644); err != nil {
			p.t.Fatal(err)
		} else {
			p.paths = append(p.paths, path)
		}
	}
}

func (p *project) rules(base, file string) {
	var lines []string
	for i := p.pick.Intn(6); i > 0; i-- {
		lines = append(lines, p.pattern())
	}
	text := strings.Join(lines, "\n")
	if p.pick.Intn(4) > 0 {
		text += "\n"
	}
	if err := os.WriteFile(filepath.Join(p.root, file), []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
	p.lists = append(p.lists, List{base, strings.Split(text, "\n")})
}

func newProject(t *testing.T, seed int64) *project {
	p := &project{t: t, root: t.TempDir(), pick: rand.New(rand.NewSource(seed))}
	p.git("init", "-q")
	p.fill("", 3)
	p.rules("", ".git/info/exclude")
	p.rules("", ".gitignore")
	for _, path := range append([]string{}, p.paths...) {
		if strings.HasSuffix(path, "/") && p.pick.Intn(2) == 0 {
			p.rules(strings.TrimSuffix(path, "/"), path+".gitignore")
			p.paths = append(p.paths, path+".gitignore")
		}
	}
	p.paths = append(p.paths, ".gitignore")
	return p
}

func (p *project) git(args ...string) []string { return p.gitWith("", args...) }

func (p *project) gitWith(stdin string, args ...string) []string {
	c := exec.Command("git", append([]string{"-c", "core.excludesFile=/dev/null"}, args...)...)
	c.Dir = p.root
	c.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "LC_ALL=C")
	c.Stdin = strings.NewReader(stdin)
	var errors bytes.Buffer
	c.Stderr = &errors
	out, err := c.Output()
	if exit, is := err.(*exec.ExitError); err != nil && !(is && exit.ExitCode() == 1) {
		p.t.Fatalf("git %v: %v: %s", args, err, errors.String())
	}
	var lines []string
	for _, line := range strings.Split(string(out), "\x00") {
		if line != "" {
			lines = append(lines, line)
		}
	}
	sort.Strings(lines)
	return lines
}

// judged walks like the tracker.
func (p *project) judged(r *Rules) map[string]Verdict {
	chains := map[string]*Chain{"": r.Root()}
	verdicts := map[string]Verdict{}
	sort.Strings(p.paths)
	for _, path := range p.paths {
		path, directory := strings.CutSuffix(path, "/")
		above, name := "", path
		if cut := strings.LastIndexByte(path, '/'); cut >= 0 {
			above, name = path[:cut], path[cut+1:]
		}
		chain := chains[above]
		if chain == nil {
			verdicts[path] = Ignored
			continue
		}
		v := r.Judge(chain, path, name, directory)
		verdicts[path] = v
		if directory && v != Ignored {
			chains[path] = r.Below(chain, path, v)
		}
	}
	return verdicts
}

func repositories(t *testing.T) int64 {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	if n, err := strconv.Atoi(os.Getenv("SKERRY_CASES")); err == nil {
		return int64(n)
	}
	return 8
}

func TestRulesIgnoreTheSamePathsAsGit(t *testing.T) {
	for seed := range repositories(t) {
		p := newProject(t, seed)
		var all []string
		for _, path := range p.paths {
			all = append(all, strings.TrimSuffix(path, "/"))
		}
		want := p.gitWith(strings.Join(all, "\x00"), "check-ignore", "-z", "--stdin", "--no-index")
		var got []string
		for path, v := range p.judged(New(p.lists, nil)) {
			if v != Kept {
				got = append(got, path)
			}
		}
		sort.Strings(got)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("seed %d: rules %q\nignored %q\ngit      %q", seed, p.lists, less(got, want), less(want, got))
		}
	}
}

// less returns the elements of a that are not in b.
func less(a, b []string) (out []string) {
	in := map[string]bool{}
	for _, one := range b {
		in[one] = true
	}
	for _, one := range a {
		if !in[one] {
			out = append(out, one)
		}
	}
	return out
}

func TestTrackedPathsAreNotIgnored(t *testing.T) {
	for seed := range repositories(t) {
		p := newProject(t, seed+1000)
		ignored := p.git("ls-files", "-z", "--others", "--ignored", "--exclude-standard")
		var tracked []string
		for _, path := range ignored {
			if p.pick.Intn(3) == 0 {
				tracked = append(tracked, path)
			}
		}
		if len(tracked) > 0 {
			p.git(append([]string{"--literal-pathspecs", "add", "-f", "--"}, tracked...)...)
		}
		want := append(p.git("ls-files", "-z"), p.git("ls-files", "-z", "--others", "--exclude-standard")...)
		var got []string
		for path, v := range p.judged(New(p.lists, tracked)) {
			if info, err := os.Stat(filepath.Join(p.root, path)); err == nil && !info.IsDir() && v == Kept {
				got = append(got, path)
			}
		}
		sort.Strings(want)
		sort.Strings(got)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("seed %d: rules %q, tracked %q\nkept %q\ngit  %q", seed, p.lists, tracked, less(got, want), less(want, got))
		}
	}
}

func TestHostileNameIsFast(t *testing.T) {
	r := New([]List{{"", []string{"**/a/**/a/**/a/**/a/**/a/**/b", strings.Repeat("*a", 100) + "b"}}}, nil)
	path := strings.Repeat("a/", 2000) + "c"
	if r.Judge(r.Root(), path, "c", false) != Kept {
		t.Error("matched")
	}
	if r.Judge(r.Root(), strings.Repeat("a", 255), strings.Repeat("a", 255), false) != Kept {
		t.Error("matched")
	}
}
