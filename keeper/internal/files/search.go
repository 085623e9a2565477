package files

import (
	"errors"
	"strings"
	"syscall"

	"skerry/keeper/internal/buffers"
	"skerry/keeper/internal/disk"
	"skerry/keeper/internal/glob"
	"skerry/keeper/internal/grep"
	"skerry/keeper/internal/linux"
)

const maxFound = 4 << 20 // bytes of lines in an answer

// SearchOptions say what is looked for, and where.
type SearchOptions struct {
	Pattern    string
	Literal    bool
	IgnoreCase bool
	Glob       string // of the files to look at; one without a slash is for names
	Hidden     bool
	Context    int
	Limit      int
}

// Match is a line that was found. Path is from the searched directory on, and empty for a file that was named itself.
type Match struct {
	Path   string   `json:"path"`
	Raw    []byte   `json:"raw,omitempty"`
	Line   int64    `json:"line"`
	Text   string   `json:"text"`
	Cut    bool     `json:"cut"`
	Before []string `json:"before"`
	After  []string `json:"after"`
}

// Matches is what a search found. More: there is more than that. Skipped: so many files and directories could not be
// searched, or not to their ends.
type Matches struct {
	Matches  []*Match `json:"matches"`
	More     bool     `json:"more"`
	Searched int      `json:"searched"`
	Skipped  int      `json:"skipped"`
}

type search struct {
	walk
	area    *Area
	matcher *grep.Matcher
	filter  *glob.Pattern
	options SearchOptions
	found   Matches
	size    int
	file    disk.File // to be searched next
	path    string
}

// Search finds lines in a file, or in all files below a directory, in order of their names.
func (a *Area) Search(path string, o SearchOptions) (*Matches, error) {
	s := &search{area: a, options: o, found: Matches{Matches: []*Match{}}}
	var err error
	if s.matcher, err = grep.Compile(o.Pattern, o.Literal, o.IgnoreCase); err != nil {
		return nil, err
	}
	if o.Glob != "" {
		pattern := o.Glob
		if !strings.Contains(pattern, "/") {
			pattern = "**/" + pattern
		}
		if s.filter, err = glob.Parse(pattern, true); err != nil {
			return nil, err
		}
	}
	s.hidden = o.Hidden
	defer s.close()
	if err = a.started(&s.walk, path); err == syscall.ENOTDIR {
		return s.one(path)
	}
	if err == nil {
		err = s.all()
	}
	s.found.More = s.found.More || s.cut
	s.found.Skipped += s.skipped
	return &s.found, err
}

// one searches a file that was named.
func (s *search) one(path string) (*Matches, error) {
	file, _, err := s.area.Open(path)
	if err != nil {
		return nil, err
	}
	s.file = file
	return &s.found, s.scan()
}

func (s *search) all() error {
	for !s.found.More {
		v, err := s.area.inSteps(s.step)
		if err != nil || v == done {
			return err
		}
		if err := s.scan(); err != nil {
			return err
		}
	}
	return nil
}

func (s *search) step() (verdict, error) {
	if s.over() {
		return done, nil
	}
	e, err := s.next()
	if e == nil {
		return goOn, err
	}
	if e.Type != syscall.DT_REG && e.Type != syscall.DT_DIR && e.Type != syscall.DT_UNKNOWN {
		return goOn, nil
	}
	path := string(s.prefix) + e.Name
	if e.Type == syscall.DT_REG && s.filter != nil && !s.filter.Matches(path) {
		return goOn, nil
	}
	fd, err := syscall.Openat(s.way.fd(), e.Name, linux.OPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return goOn, nil // vanished
	}
	defer closeAll(fd)
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return goOn, nil
	}
	switch kind(st.Mode) {
	case "directory":
		s.enter(e.Name)
	case "file":
		return s.open(fd, path)
	}
	return goOn, nil
}

func (s *search) open(fd int, path string) (verdict, error) {
	if s.filter != nil && !s.filter.Matches(path) {
		return goOn, nil
	}
	file, err := Reopen(fd, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY)
	if err != nil {
		s.found.Skipped++
		return goOn, nil
	}
	s.file, s.path = disk.File(file), path
	return pause, nil
}

// scan searches the open file.
func (s *search) scan() error {
	defer s.file.Close()
	at := int64(0)
	read := func(b []byte) (int, error) {
		n, err := s.file.ReadAt(b, at)
		at += int64(n)
		return n, err
	}
	return buffers.With(func(b []byte) error {
		partial, err := s.matcher.Scan(read, b, s.options.Context, s.take, s.area.beat)
		switch {
		case errors.Is(err, ErrGone):
			return err
		case err != nil: // no text, or it can't be read
			s.found.Skipped++
			return nil
		case partial:
			s.found.Skipped++
		}
		s.found.Searched++
		return nil
	})
}

// take keeps a line that was found, while there is room.
func (s *search) take(h *grep.Hit) bool {
	if len(s.found.Matches) == s.options.Limit || s.size > maxFound {
		s.found.More = true
		return false
	}
	m := &Match{Line: h.Line, Text: valid(h.Text), Cut: h.Cut, Before: []string{}, After: []string{}}
	m.Path, m.Raw = text(s.path)
	s.size += len(m.Path) + len(m.Text)
	for _, line := range h.Before {
		m.Before = append(m.Before, valid(line))
		s.size += len(line)
	}
	for _, line := range h.After {
		m.After = append(m.After, valid(line))
		s.size += len(line)
	}
	s.found.Matches = append(s.found.Matches, m)
	return true
}

func valid(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }
