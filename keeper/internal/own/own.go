// Package own writes what the host puts below /run/skerry: certificates to trust, the set-up that presets carry, and what
// a review rejected. It is memory, new at every start, and in no layer.
package own

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"skerry/keeper/internal/disk"
)

const (
	// Dir is where all of it stands.
	Dir       = "/run/skerry"
	bundle    = "ca.pem"
	review    = "review.json"
	maxBundle = 2 << 20
)

// Where images keep what they trust.
var bundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// Content is the body of PUT /v1/own: all that there is to be.
type Content struct {
	Certificates string            `json:"certificates"` // PEM, trusted beside what the image trusts
	Files        map[string][]byte `json:"files"`
}

// Place remembers what it has written, so that it can take it away again.
type Place struct {
	mu      sync.Mutex
	written map[string]bool
}

// ErrName is of a file that is not to be written here.
var ErrName = errors.New("not a name for a file of the host's")

// Put makes the place hold this and nothing else of ours.
func (p *Place) Put(c *Content) error {
	files := map[string][]byte{}
	for name, data := range c.Files {
		if !valid(name) {
			return ErrName
		}
		files[name] = data
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Certificates != "" {
		files[bundle] = []byte(imageBundle() + c.Certificates)
	}
	return disk.Do(func() error { return p.write(files) })
}

// PutReview makes review.json hold this. It is no part of Put, which may come before it or after.
func (p *Place) PutReview(data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return disk.Do(func() error { return replace(filepath.Join(Dir, review), data) })
}

func (p *Place) write(files map[string][]byte) error {
	for name := range p.written {
		if _, stays := files[name]; !stays {
			remove(filepath.Join(Dir, name))
		}
	}
	p.written = map[string]bool{}
	for name, data := range files {
		p.written[name] = true
		if err := replace(filepath.Join(Dir, name), data); err != nil {
			return err
		}
	}
	return nil
}

// remove takes a file away, and the directories that are empty then.
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

// replace writes a file whole or not at all. What root inside has put in its way only root inside misses.
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

// imageBundle is what the image itself trusts; nothing if it has none.
func imageBundle() (text string) {
	_ = disk.Do(func() error {
		for _, path := range bundles {
			if text = read(path); text != "" {
				return nil
			}
		}
		return nil
	})
	return text
}

// read gives a file that is regular and not too large, with a line's end at its end.
func read(path string) string {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0) // a pipe must not hold us up
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
