// Package tempname names the keeper's temporary files: a file is written under such a name beside its target and then
// renamed.
package tempname

import (
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// Prefix starts all such names.
	Prefix = ".skerry-"
	kept   = 1024 // more than are in use at a time
)

var (
	mu    sync.Mutex
	count int
	last  [kept]string
	ours  = map[string]bool{}
)

// Name returns a new name. It need not be secret: O_EXCL never opens an existing file, and a rename replaces nothing
// else by mistake.
func Name() string {
	mu.Lock()
	defer mu.Unlock()
	count++
	name := Prefix + strconv.FormatInt(time.Now().UnixNano(), 36) + "-" + strconv.FormatInt(int64(count), 36)
	delete(ours, last[count%kept])
	last[count%kept] = name
	ours[name] = true
	return name
}

// Ours reports whether this keeper has recently made the name. The prefix alone is not proof: any program may use it,
// and its files must not be hidden from a review.
func Ours(name string) bool {
	if !strings.HasPrefix(name, Prefix) {
		return false
	}
	mu.Lock()
	defer mu.Unlock()
	return ours[name]
}
