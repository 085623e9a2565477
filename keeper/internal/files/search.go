package files

import (
	"errors"
	"strings"
	"syscall"

	"skerry/keeper/internal/bufpool"
	"skerry/keeper/internal/grep"
	"skerry/keeper/internal/iolimit"
	"skerry/keeper/internal/linux"
	"skerry/keeper/internal/match/glob"
)

const maxFound = 4 << 20 // bytes of lines in an answer

// SearchOptions select lines and files.
type SearchOptions struct {
	Pattern    string
	Literal    bool
	IgnoreCase bool
	Glob       string // selects files; without a slash it matches names
	Hidden     bool
	Context    int
	Limit      int
}

// Match is a matching line. Path is relative to the searched directory, and empty if the path is the file itself.
type Match struct {
	Path   string   `json:"path"`
	Raw    []byte   `json:"raw,omitempty"`
	Line   int64    `json:"line"`
	Text   string   `json:"text"`
	Cut    bool     `json:"cut"`
	Before []string `json:"before"`
	After  []string `json:"after"`
}

// Matches is the result of a search. More: the result is incomplete. Skipped counts files and directories that could
// not be searched completely.
type Matches struct {
	Matches  []*Match `json:"matches"`
	More     bool     `json:"more"`
	Searched int      `json:"searched"`
	Skipped  int      `json:"skipped"`
}

type search struct {
	walk
	fs      *UserFS
	matcher *grep.Matcher
	filter  *glob.Pattern
	options SearchOptions
	found   Matches
	size    int
	file    iolimit.File // the next file to search
	path    string
}

// Search finds lines in a file, or in all files below a directory, sorted by name.
func (fs *UserFS) Search(path string, o SearchOptions) (*Matches, error) {
	s := &search{fs: fs, options: o, found: Matches{Matches: []*Match{}}}
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
	if err = fs.startWalk(&s.walk, path); err == syscall.ENOTDIR {
		return s.one(path)
	}
	if err == nil {
		err = s.all()
	}
	s.found.More = s.found.More || s.cut
	s.found.Skipped += s.skipped
	return &s.found, err
}

// one searches a single file.
func (s *search) one(path string) (*Matches, error) {
	file, _, err := s.fs.Open(path)
	if err != nil {
		return nil, err
	}
	s.file = file
	return &s.found, s.scan()
}

func (s *search) all() error {
	for !s.found.More {
		v, err := s.fs.runSteps(s.step)
		if err != nil || v == done {
			return err
		}
		if err := s.scan(); err != nil {
			return err
		}
	}
	return nil
}

// step examines one entry and pauses the walk at a file to search.
func (s *search) step() (verdict, error) {
	if s.over() {
		return done, nil
	}
	e, err := s.next()
	if e == nil {
		return proceed, err
	}
	if e.Type != syscall.DT_REG && e.Type != syscall.DT_DIR && e.Type != syscall.DT_UNKNOWN {
		return proceed, nil
	}
	path := string(s.prefix) + e.Name
	if e.Type == syscall.DT_REG && s.filter != nil && !s.filter.Matches(path) {
		return proceed, nil
	}
	fd, err := syscall.Openat(s.way.fd(), e.Name, linux.OPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return proceed, nil // vanished
	}
	defer closeAll(fd)
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return proceed, nil
	}
	switch kind(st.Mode) {
	case "directory":
		s.enter(e.Name)
	case "file":
		return s.open(fd, path)
	}
	return proceed, nil
}

func (s *search) open(fd int, path string) (verdict, error) {
	if s.filter != nil && !s.filter.Matches(path) {
		return proceed, nil
	}
	file, err := Reopen(fd, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY)
	if err != nil {
		s.found.Skipped++
		return proceed, nil
	}
	s.file, s.path = iolimit.File(file), path
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
	return bufpool.With(func(b []byte) error {
		partial, err := s.matcher.Scan(read, b, s.options.Context, s.take, s.fs.heartbeat)
		switch {
		case errors.Is(err, ErrHungUp):
			return err
		case err != nil: // binary or unreadable
			s.found.Skipped++
			return nil
		case partial:
			s.found.Skipped++
		}
		s.found.Searched++
		return nil
	})
}

// take records a match while the answer has capacity.
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
