// Package tree moves whole directories: it packs a directory into an archive while reading it, and unpacks an archive
// while receiving it, with the rights of one of the sandbox's users and in bounded memory.
//
// Unpacking makes all entries that are complete in the buffer of 256 KiB in one job; larger files are streamed. Every
// path is opened below the target with openat2 and without links, so neither an archive nor a racing process inside can
// lead out; each file is written beside its place and renamed.
//
// Packing walks by fds, examines an entry before opening it, and writes the size of a small file only after reading it.
package tree

import (
	"errors"
	"strings"
	"syscall"
)

const (
	// maxTrees bounds concurrent calls: each may hold a thread and, when packing, an fd per level.
	maxTrees       = 8
	maxSkipped     = 200
	maxSkippedName = 1 << 10
	parentMode     = 0o755
	keptBits       = 0o1777 // set-id bits are never transferred
)

// ErrTooMany means that maxTrees calls are in progress.
var ErrTooMany = errors.New("too many directory transfers at once in this sandbox")

var slots = make(chan struct{}, maxTrees)

// Slot takes a slot; the returned function releases it.
func Slot() (func(), error) {
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	default:
		return nil, ErrTooMany
	}
}

// Skipped is an entry that was left out, with the reason.
type Skipped struct {
	Path   string `json:"path"`
	Raw    []byte `json:"raw,omitempty"` // set if the path is not UTF-8
	Reason string `json:"reason"`
}

// Summary counts the transferred entries. More counts skipped entries beyond the list.
type Summary struct {
	Files       int64     `json:"files"`
	Directories int64     `json:"directories"`
	Links       int64     `json:"links"`
	Bytes       int64     `json:"bytes"`
	Skipped     []Skipped `json:"skipped"`
	More        int64     `json:"more"`
}

func (s *Summary) skip(name, reason string) {
	if len(s.Skipped) >= maxSkipped {
		s.More++
		return
	}
	if len(name) > maxSkippedName {
		name = name[:maxSkippedName] + "…"
	}
	skipped := Skipped{Path: strings.ToValidUTF8(name, "\uFFFD"), Reason: reason}
	if skipped.Path != name {
		skipped.Raw = []byte(name)
	}
	s.Skipped = append(s.Skipped, skipped)
}

// Failure is an error at one entry of a tree.
type Failure struct {
	Name string
	Err  error
}

func (f *Failure) Error() string {
	if errors.Is(f.Err, syscall.ELOOP) {
		return "a link is in the way, and links are not followed here"
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
