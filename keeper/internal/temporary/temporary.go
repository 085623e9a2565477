// Package temporary names files of the keeper's own that are on their way to their place.
package temporary

import (
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// Prefix begins all such names.
	Prefix = ".skerry-"
	kept   = 1024 // more than are on their way at a time
)

var (
	mu    sync.Mutex
	count int
	last  [kept]string
	ours  = map[string]bool{}
)

// Name makes one. It need not be secret: O_EXCL never opens what is there already, and a rename replaces nothing else by
// mistake.
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

// Ours says whether this keeper made a name, and not long ago: nobody else's file is taken for one of its own because of
// its name.
func Ours(name string) bool {
	if !strings.HasPrefix(name, Prefix) {
		return false
	}
	mu.Lock()
	defer mu.Unlock()
	return ours[name]
}
