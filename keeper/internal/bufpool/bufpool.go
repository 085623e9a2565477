// Package bufpool lends large buffers for moving bytes, so that copying a file creates no work for the garbage
// collector.
package bufpool

import "sync"

// Size is the size of a buffer.
const Size = 256 << 10

var pool = sync.Pool{New: func() any { return new([Size]byte) }}

// With lends a buffer while f runs.
func With(f func([]byte) error) error {
	b := pool.Get().(*[Size]byte)
	defer pool.Put(b)
	return f(b[:])
}
