// Package buffers lends the large pieces of memory that bytes pass through, so that moving a file is no work for the
// garbage collector.
package buffers

import "sync"

// Size of a lent buffer.
const Size = 256 << 10

var pool = sync.Pool{New: func() any { return new([Size]byte) }}

// With lends a buffer for as long as f runs.
func With(f func([]byte) error) error {
	b := pool.Get().(*[Size]byte)
	defer pool.Put(b)
	return f(b[:])
}
