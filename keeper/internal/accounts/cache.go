package accounts

import (
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	maxFile = 1 << 20
	settled = 100 * time.Millisecond
)

// entry is a file at the time of its last read.
type entry struct {
	st   syscall.Stat_t
	text string
}

var (
	mu    sync.Mutex
	cache = map[string]entry{}
)

// contents returns a small regular file, from memory while it is unchanged: every command looks up its user. A recently
// changed file is not cached, because two changes within one tick of the clock look alike.
func contents(path string) string {
	mu.Lock()
	defer mu.Unlock()
	var st syscall.Stat_t
	if syscall.Stat(path, &st) != nil || st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return ""
	}
	if old, ok := cache[path]; ok && same(&old.st, &st) {
		return old.text
	}
	delete(cache, path)
	text := read(path, &st)
	if time.Since(time.Unix(st.Ctim.Unix())) > settled {
		cache[path] = entry{st, text}
	}
	return text
}

func same(a, b *syscall.Stat_t) bool {
	return a.Dev == b.Dev && a.Ino == b.Ino && a.Size == b.Size && a.Mtim == b.Mtim && a.Ctim == b.Ctim
}

func read(path string, st *syscall.Stat_t) string {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return ""
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	if syscall.Fstat(fd, st) != nil || st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return ""
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return ""
	}
	return string(text)
}
