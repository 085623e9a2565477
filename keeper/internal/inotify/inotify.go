// Package inotify takes apart what the kernel tells of changes.
package inotify

import (
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// Notice is what the kernel says.
type Notice struct {
	WD     int
	Mask   uint32
	Cookie uint32 // the two halves of a rename have the same
	Name   string
	Size   int // of it, as it lay in the queue
}

// Has says whether one of the mask's bits is set.
func (n *Notice) Has(mask uint32) bool { return n.Mask&mask != 0 }

// Directory says whether it is about a directory.
func (n *Notice) Directory() bool { return n.Has(syscall.IN_ISDIR) }

// Open makes an instance.
func Open() (int, error) { return syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC) }

// Each takes apart what was read from an instance.
func Each(b []byte, each func(*Notice)) {
	const head = syscall.SizeofInotifyEvent
	for len(b) >= head {
		raw := (*syscall.InotifyEvent)(unsafe.Pointer(&b[0]))
		end := head + int(raw.Len)
		if end > len(b) {
			return
		}
		name, _, _ := strings.Cut(string(b[head:end]), "\x00")
		each(&Notice{int(raw.Wd), raw.Mask, raw.Cookie, name, end})
		b = b[end:]
	}
}

// Watch watches the directory that an fd has open: what was looked at, and nothing that took its name.
func Watch(instance, fd int, mask uint32) (int, error) {
	return syscall.InotifyAddWatch(instance, "/proc/self/fd/"+strconv.Itoa(fd), mask)
}

// Unwatch stops it.
func Unwatch(instance, wd int) { _, _ = syscall.InotifyRmWatch(instance, uint32(wd)) }
