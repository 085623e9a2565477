package diff

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func quiet() error { return nil }

func applied(old, text string) (string, []int, error) {
	files, err := Parse([]byte(text))
	if err != nil {
		return "", nil, err
	}
	if len(files) != 1 {
		return "", nil, fmt.Errorf("%d files", len(files))
	}
	var out bytes.Buffer
	offsets, err := Apply(strings.NewReader(old), &out, files[0].Hunks, quiet)
	return out.String(), offsets, err
}

func TestApplyReproducesTheOutputOfDiff(t *testing.T) {
	if _, err := exec.LookPath("diff"); err != nil {
		t.Skip("diff is not installed")
	}
	random := rand.New(rand.NewSource(1))
	dir := t.TempDir()
	for n := range 300 {
		old := lines(random, 40)
		made := append([]string{}, old...)
		for range random.Intn(6) {
			switch at := random.Intn(len(made) + 1); random.Intn(3) {
			case 0:
				made = append(made[:at], append([]string{fmt.Sprint("new ", random.Intn(9))}, made[at:]...)...)
			case 1:
				if at < len(made) {
					made = append(made[:at], made[at+1:]...)
				}
			default:
				if at < len(made) {
					made[at] = "changed"
				}
			}
		}
		before, after := joined(random, old), joined(random, made)
		a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
		_ = os.WriteFile(a, []byte(before), 0o600)
		_ = os.WriteFile(b, []byte(after), 0o600)
		text, _ := exec.Command("diff", "-U", fmt.Sprint(random.Intn(4)), a, b).Output()
		if len(text) == 0 {
			continue
		}
		got, offsets, err := applied(before, string(text))
		if err != nil || got != after {
			t.Fatalf("%d: %v\n%s\n%q\nnot\n%q", n, err, text, got, after)
		}
		for _, offset := range offsets {
			if offset != 0 {
				t.Fatalf("%d: offset %d\n%s", n, offset, text)
			}
		}
	}
}

func lines(random *rand.Rand, limit int) (lines []string) {
	for n := range random.Intn(limit) {
		lines = append(lines, fmt.Sprintf("line %d %d", n, random.Intn(3)))
	}
	return lines
}

func joined(random *rand.Rand, lines []string) string {
	text := strings.Join(lines, "\n")
	if text != "" && random.Intn(2) == 0 {
		text += "\n"
	}
	return text
}

const change = "--- a/f\n+++ b/f\n@@ -2,3 +2,3 @@\n two\n-three\n+3\n four\n"

func TestHunkIsFoundNearby(t *testing.T) {
	old := strings.Repeat("x\n", 50) + "one\ntwo\nthree\nfour\nfive\n"
	got, offsets, err := applied(old, change)
	if err != nil || got != strings.Replace(old, "three", "3", 1) || fmt.Sprint(offsets) != "[50]" {
		t.Error(got, offsets, err)
	}
}

func TestMismatchDescribesTheDifference(t *testing.T) {
	for _, c := range []struct{ old, text, message string }{
		{"one\ntwo\ntree\nfour\n", change, `hunk 1: line 3 is "tree", not "three"`},
		{"one\n", change, `hunk 1: the file ends before line 2; expected "two"`},
		{"one\ntwo\nthree\nfour", change, "hunk 1: line 4 and the hunk differ in their line break at the end of the file"},
		{"a\ntwo\nthree\nfour\ntwo\nthree\nfour\n", strings.Replace(change, "-2,3", "-3,3", 1),
			"hunk 1: it does not fit at line 3, but at both lines 2 and 5"},
		{strings.Repeat("x\n", 500) + "two\nthree\nfour\n", change, `hunk 1: line 2 is "x", not "two"`},
		{"one\n", "@@ -5,0 +6 @@\n+x\n", "hunk 1: line 5, after which it belongs, does not exist"},
		{"one\ntwo\nthree\nfour\n", change + "@@ -1,1 +1,1 @@\n-one\n+1\n", "hunk 2: it overlaps the previous hunk"},
		{"one\ntwo\n", "@@ -1 +1 @@\n-one\n+1\n\\ No newline at end of file\n",
			"hunk 1: a line follows the line that the diff marks as the last"},
	} {
		_, _, err := applied(c.old, c.text)
		var mismatch *Mismatch
		if !errors.As(err, &mismatch) || err.Error() != c.message {
			t.Errorf("%q: %v", c.text, err)
		}
	}
}

func TestInvalidDiffsAreRejected(t *testing.T) {
	for _, text := range []string{
		"", "hello\n", "--- a\n+++ b\n", "@@ -1 +1 @@\n-a\n", "@@ -1 +1 @@\n-a\n+b\n+c\n", "@@ -1,2 +1 @@\n-a\n+b\n",
		"@@ -x +1 @@\n-a\n+b\n", "@@ 1 1 @@\n", "--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "@@ -1 +1 @@\n*a\n",
		"rename from a\nrename to b\n", "Binary files a and b differ\n", "GIT binary patch\n", "@@ -0,1 +1 @@\n-a\n+b\n",
		"--- \n+++ b\n@@ -1 +1 @@\n-a\n+b\n", "--- \"a\n+++ b\n@@ -1 +1 @@\n-a\n+b\n", "@@ -99999999999999999999 +1 @@\n",
	} {
		files, err := Parse([]byte(text))
		var malformed *Malformed
		if !errors.As(err, &malformed) {
			t.Errorf("%q: %v %v", text, files, err)
		}
	}
}

func TestNamesOfGitAndDiffAreParsed(t *testing.T) {
	for header, want := range map[string]string{
		"--- a/x\n+++ b/x\n":                                            "x x",
		"--- x\t2020-01-01 00:00:00\n+++ y\t2020-01-01\n":               "x y",
		"--- /dev/null\n+++ b/x\n":                                      " x",
		"--- a/x\n+++ /dev/null\n":                                      "x ",
		"--- a/x\n+++ c/x\n":                                            "a/x c/x",
		"--- \"a/\\303\\274 \\\"\"\n+++ \"b/\\303\\274 \\\"\"\n":        "ü \" ü \"",
		"diff --git a/x b/x\nindex 1..2 100644\n--- a/x\r\n+++ b/x\r\n": "x x",
	} {
		files, err := Parse([]byte(header + "@@ -1 +1 @@\n-a\n+b\n"))
		if err != nil || files[0].Old+" "+files[0].New != want {
			t.Errorf("%q: %v %v", header, files, err)
		}
	}
}

func TestTextAroundADiffIsIgnored(t *testing.T) {
	text := "From: me\nSubject: x\n\n---\n f | 2 +-\n\ndiff --git a/f b/f\nnew file mode 100755\n--- /dev/null\n+++ b/f\n" +
		"@@ -0,0 +1 @@ function()\n+a\n-- \n2.39.2\n\n"
	files, err := Parse([]byte(text))
	if err != nil || len(files) != 1 || files[0].Mode == nil || *files[0].Mode != 0o755 || files[0].New != "f" {
		t.Error(files, err)
	}
}

func TestEmptyContextLineWithoutBlankIsAccepted(t *testing.T) {
	got, _, err := applied("a\n\nb\n", "@@ -1,3 +1,3 @@\n-a\n+c\n\n b\n")
	if err != nil || got != "c\n\nb\n" {
		t.Error(got, err)
	}
}
