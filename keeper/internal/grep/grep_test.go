package grep

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"regexp"
	"strings"
	"testing"
)

func quiet() error { return nil }

// found scans a text through a buffer of the given size and formats each hit as "line:text".
func found(t *testing.T, m *Matcher, text string, size, context int) (hits []string, partial bool) {
	t.Helper()
	reader := strings.NewReader(text)
	partial, err := m.Scan(reader.Read, make([]byte, size), context, func(h *Hit) bool {
		hits = append(hits, fmt.Sprintf("%s|%d:%s|%s", bytes.Join(h.Before, []byte{','}), h.Line, h.Text, bytes.Join(h.After, []byte{','})))
		return true
	}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return hits, partial
}

// plainly does the same line by line.
func plainly(re *regexp.Regexp, text string, context int) (hits []string) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if text == "" {
		lines = nil
	}
	for i, line := range lines {
		if re.MatchString(line) {
			before := strings.Join(lines[max(0, i-context):i], ",")
			after := strings.Join(lines[i+1:min(len(lines), i+1+context)], ",")
			hits = append(hits, fmt.Sprintf("%s|%d:%s|%s", before, i+1, line, after))
		}
	}
	return hits
}

func TestScanFindsTheSameLinesAsALineByLineSearch(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	patterns := []string{"a", "^a", "b$", "^$", "a.b", "a[^b]c", "(a|b)+c", `\ba\b`, `\Aab`, `c\z`, "x*", `a\s*b`, "[a-c]{2,3}$", "(?i)AB", "(?s)a.*b", "ab.c", "(a|b)+ca", "b*ab$", "(ab){2}", "(?:ab)?cc", "^ab c", "(?i:ab)cc", "x*ab|ca"}
	for _, pattern := range patterns {
		m, err := Compile(pattern, false, false)
		if err != nil {
			t.Fatal(pattern, err)
		}
		re := regexp.MustCompile(pattern)
		for range 200 {
			text := make([]byte, random.Intn(200))
			for i := range text {
				text[i] = "aabbcc  \n\n"[random.Intn(10)]
			}
			if got, partial := found(t, m, string(text), 48, 0); !partial {
				if want := plainly(re, string(text), 0); strings.Join(got, "\n") != strings.Join(want, "\n") {
					t.Fatalf("%s in %q:\n%q\nnot\n%q", pattern, text, got, want)
				}
			}
			for _, size := range []int{256, 4096} {
				for context := range 3 {
					got, _ := found(t, m, string(text), size, context)
					if want := plainly(re, string(text), context); strings.Join(got, "\n") != strings.Join(want, "\n") {
						t.Fatalf("%s in %q (%d, %d):\n%q\nnot\n%q", pattern, text, size, context, got, want)
					}
				}
			}
		}
	}
}

func TestLineNumbersContinueAcrossBuffers(t *testing.T) {
	text := strings.Repeat("nothing here\n", 1000) + "needle\n" + strings.Repeat("more\n", 100) + "needle"
	m, _ := Compile("needle", false, false)
	for _, size := range []int{64, 1000, 1 << 20} {
		got, partial := found(t, m, text, size, 0)
		if partial || fmt.Sprint(got) != "[|1001:needle| |1102:needle|]" {
			t.Errorf("%d: %v", size, got)
		}
	}
}

func TestTooLongLineIsSearchedPartially(t *testing.T) {
	text := "a\nneedle" + strings.Repeat("x", 1000) + "needle\nneedle\n"
	m, _ := Compile("needle", true, false)
	got, partial := found(t, m, text, 100, 0)
	if !partial || len(got) != 2 || !strings.HasPrefix(got[0], "|2:needlexx") || got[1] != "|3:needle|" {
		t.Errorf("%v %q", partial, got)
	}
	m, _ = Compile("needle$", false, false)
	if got, partial = found(t, m, strings.Repeat("x", 1000), 100, 1); !partial || got != nil {
		t.Errorf("%v %q", partial, got)
	}
}

func TestLongLineIsShownAroundItsMatch(t *testing.T) {
	m, _ := Compile("needle", true, false)
	reader := strings.NewReader(strings.Repeat("x", 5000) + "needle" + strings.Repeat("y", 5000))
	_, err := m.Scan(reader.Read, make([]byte, 1<<16), 0, func(h *Hit) bool {
		if !h.Cut || len(h.Text) != maxText || !bytes.Contains(h.Text, []byte("needle")) {
			t.Errorf("%d %v", len(h.Text), h.Cut)
		}
		return true
	}, quiet)
	if err != nil {
		t.Error(err)
	}
}

func TestBinaryFilesAreNotSearched(t *testing.T) {
	m, _ := Compile("a", true, false)
	_, err := m.Scan(strings.NewReader("a\x00a").Read, make([]byte, 100), 0, func(*Hit) bool { return true }, quiet)
	if !errors.Is(err, ErrBinary) {
		t.Error(err)
	}
}

func TestUnusablePatternsAreRejected(t *testing.T) {
	for _, pattern := range []string{
		"", "(", "[a", "a{1001}", "((a{100}){100}){100}", "a\nb", strings.Repeat("a", 2000), "(?<=a)b", `(a)\1`, "\xff",
		strings.Repeat("(a{1,30}){1,30}", 10),
	} {
		_, err := Compile(pattern, false, false)
		var bad *Bad
		if !errors.As(err, &bad) {
			t.Errorf("%q: %v", pattern, err)
		}
	}
}

func TestLiteralAndIgnoreCase(t *testing.T) {
	for _, c := range []struct {
		pattern              string
		literal, ignore, hit bool
	}{{"a.b", true, false, false}, {"A+B", true, false, true}, {"a+b", true, true, true}, {"a\\+b", false, false, false}, {"a\\+b", false, true, true}} {
		m, err := Compile(c.pattern, c.literal, c.ignore)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := found(t, m, "xA+By\n", 100, 0); (got != nil) != c.hit {
			t.Errorf("%v: %v", c, got)
		}
	}
}

func TestScanStopsOnRequest(t *testing.T) {
	m, _ := Compile("a", true, false)
	n := 0
	_, err := m.Scan(strings.NewReader("a\na\na\n").Read, make([]byte, 100), 0, func(*Hit) bool { n++; return n < 2 }, quiet)
	if n != 2 || err != nil {
		t.Error(n, err)
	}
	_, err = m.Scan(strings.NewReader("a\n").Read, make([]byte, 100), 0, func(*Hit) bool { return true }, func() error { return io.ErrClosedPipe })
	if err != io.ErrClosedPipe {
		t.Error(err)
	}
}
