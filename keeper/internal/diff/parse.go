// Package diff parses unified diffs and applies them strictly: the old lines of a hunk must be present.
package diff

import (
	"bytes"
	"strconv"
	"strings"
)

const (
	maxFiles = 1000
	maxHunks = 100_000
	maxName  = 4096
	maxLines = 500_000
)

// Malformed rejects a text that is not a unified diff, or one that cannot be applied.
type Malformed struct {
	Line   int // of the diff
	Reason string
}

func (m *Malformed) Error() string { return "the diff, line " + strconv.Itoa(m.Line) + ": " + m.Reason }

// File is the change of one file. A name is "" for /dev/null; Unnamed: the diff has no names.
type File struct {
	Old, New string
	Unnamed  bool
	Mode     *uint32
	Hunks    []Hunk
}

// Hunk is one change. Its old lines must be present exactly.
type Hunk struct {
	OldStart, OldCount, NewStart, NewCount int
	Old, New                               []Line
	Added, Removed                         int
}

// Line is a line of a file. Open: the last line, without a line break.
type Line struct {
	Text []byte
	Open bool
}

type parser struct {
	lines [][]byte
	at    int
	files []File
	mode  *uint32
}

// Parse reads a diff of several files, or only the hunks of one.
func Parse(text []byte) ([]File, error) {
	if bytes.Count(text, []byte{'\n'}) > maxLines {
		return nil, &Malformed{1, "too many lines"}
	}
	p := &parser{lines: bytes.Split(text, []byte{'\n'})}
	if last := len(p.lines) - 1; len(p.lines[last]) == 0 {
		p.lines = p.lines[:last]
	}
	hunks := 0
	for p.at < len(p.lines) {
		line := string(p.header())
		var err error
		switch {
		case strings.HasPrefix(line, "--- ") && p.at+1 < len(p.lines) && bytes.HasPrefix(p.lines[p.at+1], []byte("+++ ")):
			err = p.names(line)
		case strings.HasPrefix(line, "@@ "):
			hunks++
			err = p.hunk(line)
		default:
			err = p.extra(line)
		}
		if err == nil && (len(p.files) > maxFiles || hunks > maxHunks) {
			err = p.bad("too many files or hunks")
		}
		if err != nil {
			return nil, err
		}
	}
	for _, f := range p.files {
		if len(f.Hunks) == 0 {
			return nil, p.bad("a file has no hunk")
		}
	}
	if len(p.files) == 0 {
		return nil, &Malformed{1, "no hunk found"}
	}
	return p.files, nil
}

// header returns the current line without the carriage return that some tools add.
func (p *parser) header() []byte { return bytes.TrimSuffix(p.lines[p.at], []byte{'\r'}) }

func (p *parser) bad(reason string) error { return &Malformed{p.at + 1, reason} }

// extra handles a line between hunks and files.
func (p *parser) extra(line string) error {
	for _, unfit := range []string{"rename ", "copy ", "Binary files ", "GIT binary patch"} {
		if strings.HasPrefix(line, unfit) {
			return p.bad("renames, copies and binary changes are not supported")
		}
	}
	for _, prefix := range []string{"new file mode 100", "new mode 100"} {
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			mode, err := strconv.ParseUint(rest, 8, 12)
			if err != nil {
				return p.bad("invalid file mode")
			}
			m := uint32(mode) & 0o777
			p.mode = &m
		}
	}
	if len(p.files) > 0 && line != "" && strings.ContainsRune("+- ", rune(line[0])) && line != "-- " {
		return p.bad("the previous hunk has more lines than its header says")
	}
	p.at++
	return nil
}

// names parses the two lines with the names of a file.
func (p *parser) names(line string) error {
	f := File{Mode: p.mode}
	p.mode = nil
	var err error
	if f.Old, err = p.name(line[len("--- "):]); err != nil {
		return err
	}
	p.at++
	if f.New, err = p.name(string(p.header())[len("+++ "):]); err != nil {
		return err
	}
	p.at++
	if f.Old == "" && f.New == "" {
		return p.bad("both names are /dev/null")
	}
	stripGit(&f)
	p.files = append(p.files, f)
	return nil
}

// stripGit removes git's a/ and b/ prefixes.
func stripGit(f *File) {
	old, oldOK := strings.CutPrefix(f.Old, "a/")
	new, newOK := strings.CutPrefix(f.New, "b/")
	if (oldOK || f.Old == "") && (newOK || f.New == "") {
		f.Old, f.New = old, new
	}
}

// name parses the text after --- or +++: a name, possibly quoted as in C or followed by a tab and a time.
func (p *parser) name(text string) (string, error) {
	if strings.HasPrefix(text, `"`) {
		quoted, err := strconv.QuotedPrefix(text)
		if err != nil {
			return "", p.bad("invalid name")
		}
		if text, err = strconv.Unquote(quoted); err != nil {
			return "", p.bad("invalid name")
		}
	} else {
		text, _, _ = strings.Cut(text, "\t")
	}
	if text == "/dev/null" {
		return "", nil
	}
	if text == "" || len(text) > maxName || strings.ContainsRune(text, 0) {
		return "", p.bad("invalid name")
	}
	return text, nil
}

// hunk parses "@@ -1,2 +3,4 @@" and the lines that belong to it.
func (p *parser) hunk(line string) error {
	if len(p.files) == 0 {
		p.files = append(p.files, File{Unnamed: true})
	}
	var h Hunk
	ranges, _, ok := strings.Cut(line[len("@@ "):], " @@")
	old, new, both := strings.Cut(ranges, " ")
	if !ok || !both || !span(old, '-', &h.OldStart, &h.OldCount) || !span(new, '+', &h.NewStart, &h.NewCount) {
		return p.bad("invalid hunk header, expected the form @@ -1,2 +3,4 @@")
	}
	p.at++
	for len(h.Old) < h.OldCount || len(h.New) < h.NewCount {
		if p.at == len(p.lines) {
			return p.bad("the diff ends in the middle of a hunk")
		}
		if err := p.line(&h); err != nil {
			return err
		}
	}
	if len(h.Old) > h.OldCount || len(h.New) > h.NewCount {
		return p.bad("the hunk has more lines than its header says")
	}
	f := &p.files[len(p.files)-1]
	f.Hunks = append(f.Hunks, h)
	return nil
}

func span(text string, sign byte, start, count *int) bool {
	if text == "" || text[0] != sign {
		return false
	}
	first, second, both := strings.Cut(text[1:], ",")
	n, err := strconv.ParseUint(first, 10, 31)
	*start, *count = int(n), 1
	if err != nil || !both {
		return err == nil && (*start > 0 || !both)
	}
	n, err = strconv.ParseUint(second, 10, 31)
	*count = int(n)
	return err == nil && (*start > 0 || *count == 0)
}

// line parses one line of a hunk, with the marker for a missing line break that may follow it.
func (p *parser) line(h *Hunk) error {
	line := p.lines[p.at]
	kind, l := byte(' '), Line{Text: line}
	if len(line) > 0 { // an empty line is an empty context line that lost its blank
		kind, l.Text = line[0], line[1:]
	}
	p.at++
	if p.at < len(p.lines) && bytes.HasPrefix(p.lines[p.at], []byte{'\\'}) { // \ No newline at end of file
		l.Open = true
		p.at++
	}
	switch kind {
	case ' ':
		h.Old, h.New = append(h.Old, l), append(h.New, l)
	case '-':
		h.Old, h.Removed = append(h.Old, l), h.Removed+1
	case '+':
		h.New, h.Added = append(h.New, l), h.Added+1
	default:
		p.at--
		return p.bad("the hunk has fewer lines than its header says")
	}
	return nil
}
