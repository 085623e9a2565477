// Package build says which sources this binary was made from.
package build

// ID is the hash over keeper/**, set by the linker (hatch_build.py). The server refuses a keeper that says another.
var ID = "unknown"

// Protocol is the version of what is spoken on the keeper's socket.
const Protocol = 1
