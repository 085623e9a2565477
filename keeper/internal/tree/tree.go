// Package tree moves whole directories: it packs one into an archive as it is read, and unpacks an archive as it comes,
// both with the rights of one of the sandbox's users, in memory that does not grow with what is moved.
package tree

import (
	"errors"
	"strings"
	"syscall"
)

const (
	// most is how many trees are moved at once: each may hold a thread and, packed, an fd for each level.
	most       = 8
	maxTold    = 200
	toldName   = 1 << 10
	parentMode = 0o755
	keptBits   = 0o1777 // set-id bits never travel
)

// ErrTooMany means that enough trees are on their way already.
var ErrTooMany = errors.New("too many directories are on their way at once in this sandbox")

var slots = make(chan struct{}, most)

// Slot takes one of the few places; give it back with the function that it returns.
func Slot() (func(), error) {
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	default:
		return nil, ErrTooMany
	}
}

// Skipped is one thing that was left out, and why.
type Skipped struct {
	Path   string `json:"path"`
	Raw    []byte `json:"raw,omitempty"` // where the path is not UTF-8
	Reason string `json:"reason"`
}

// Summary is what was moved. More counts what was left out beyond the list.
type Summary struct {
	Files       int64     `json:"files"`
	Directories int64     `json:"directories"`
	Links       int64     `json:"links"`
	Bytes       int64     `json:"bytes"`
	Skipped     []Skipped `json:"skipped"`
	More        int64     `json:"more"`
}

func (s *Summary) skip(name, reason string) {
	if len(s.Skipped) >= maxTold {
		s.More++
		return
	}
	if len(name) > toldName {
		name = name[:toldName] + "…"
	}
	told := Skipped{Path: strings.ToValidUTF8(name, "\uFFFD"), Reason: reason}
	if told.Path != name {
		told.Raw = []byte(name)
	}
	s.Skipped = append(s.Skipped, told)
}

// Failure is an error at one place of a tree.
type Failure struct {
	Name string
	Err  error
}

func (f *Failure) Error() string {
	if errors.Is(f.Err, syscall.ELOOP) {
		return "a link is in its way, and links are not followed here"
	}
	return f.Err.Error()
}

func (f *Failure) Unwrap() error { return f.Err }

func at(name string, err error) error {
	if err == nil {
		return nil
	}
	return &Failure{name, err}
}
