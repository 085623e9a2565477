package watch

import "testing"

func TestDirectoryDoesNotFitIntoItself(t *testing.T) {
	root := &node{}
	a := &node{name: "a", above: root}
	b := &node{name: "b", above: a}
	if a.fits(b) || a.fits(a) {
		t.Error("a directory fits into itself: its path would have no end")
	}
	if !b.fits(root) || !b.fits(a) || !a.fits(nil) {
		t.Error("a directory does not fit where it can be")
	}
}

func TestWatchDepthIsBounded(t *testing.T) {
	deepest := &node{}
	for range maxDepth - 1 {
		deepest = &node{above: deepest}
	}
	if fresh := (&node{}); !fresh.fits(deepest) || fresh.fits(&node{above: deepest}) {
		t.Error("wrong depth bound")
	}
}
