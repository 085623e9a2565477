// Package build identifies the sources of this binary.
package build

// ID is the hash of keeper/**, set by the linker (hatch_build.py). The server starts no keeper with another ID.
var ID = "unknown"

// Protocol is the version of the protocol on the keeper's socket; see src/skerry/keeper/values.py.
const Protocol = 1
