// Package guestfiles writes the files that the host places below /run/skerry: trusted certificates, the set-up of
// presets, and the rejected hunks of a review. /run/skerry is a tmpfs: empty at every start, and in no layer or
// snapshot.
//
// The keeper writes these files itself instead of the host mounting them, because only the keeper can read the image's
// certificate bundle with the sandbox's own root as its root.
package guestfiles

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"skerry/keeper/internal/iolimit"
)

const (
	// Dir holds all guest files.
	Dir       = "/run/skerry"
	bundle    = "ca.pem"
	review    = "review.json"
	maxBundle = 2 << 20
)

// The places where images keep their certificate bundle.
var bundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// Content is the body of PUT /v1/guest-files: the complete set of files.
type Content struct {
	Certificates string            `json:"certificates"` // PEM, in addition to the image's bundle
	Files        map[string][]byte `json:"files"`
}

// Writer remembers the files that it has written, so that the next request can remove them.
type Writer struct {
	mu      sync.Mutex
	written map[string]bool
}

// ErrName rejects a file that does not belong here.
var ErrName = errors.New("not a valid name for a guest file")

// Put replaces the guest files of the previous request. review.json is not affected.
func (w *Writer) Put(c *Content) error {
	files := map[string][]byte{}
	for name, data := range c.Files {
		if !valid(name) {
			return ErrName
		}
		files[name] = data
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.Certificates != "" {
		files[bundle] = []byte(imageBundle() + c.Certificates)
	}
	return iolimit.Do(func() error { return w.write(files) })
}

// PutReview replaces review.json. It is independent of Put and may come before or after it.
func (w *Writer) PutReview(data []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return iolimit.Do(func() error { return replace(filepath.Join(Dir, review), data) })
}

func (w *Writer) write(files map[string][]byte) error {
	for name := range w.written {
		if _, stays := files[name]; !stays {
			remove(filepath.Join(Dir, name))
		}
	}
	w.written = map[string]bool{}
	for name, data := range files {
		w.written[name] = true
		if err := replace(filepath.Join(Dir, name), data); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes a file and the directories that become empty.
func remove(path string) {
	for path != Dir && os.Remove(path) == nil {
		path = filepath.Dir(path)
	}
}

func valid(name string) bool {
	if name == "truststore.p12" {
		return true
	}
	rest, below := strings.CutPrefix(name, "presets/")
	return below && filepath.IsLocal(rest) && filepath.Clean(rest) == rest && rest != "." && !strings.Contains(rest, "\x00")
}

// replace writes a file completely or not at all. If root inside the sandbox obstructs it, only root inside loses.
func replace(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	next := path + ".new"
	_ = os.Remove(next)
	file, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if closing := file.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		_ = os.Remove(next)
	}
	return err
}

// imageBundle returns the certificates that the image trusts, or "".
func imageBundle() (text string) {
	_ = iolimit.Do(func() error {
		for _, path := range bundles {
			if text = read(path); text != "" {
				return nil
			}
		}
		return nil
	})
	return text
}

// read returns a regular file of bounded size, with a newline at its end.
func read(path string) string {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0) // opening a FIFO must not block
	if err != nil {
		return ""
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxBundle {
		return ""
	}
	data, err := io.ReadAll(io.LimitReader(file, maxBundle))
	if err != nil || len(data) == 0 {
		return ""
	}
	return strings.TrimRight(string(data), "\n") + "\n"
}
