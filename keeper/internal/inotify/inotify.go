// Package inotify decodes the kernel's notices of file changes.
package inotify

import (
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// Notice is one inotify event.
type Notice struct {
	WD     int
	Mask   uint32
	Cookie uint32 // shared by the two halves of a rename
	Name   string
}

// Has reports whether any bit of the mask is set.
func (n *Notice) Has(mask uint32) bool { return n.Mask&mask != 0 }

// Directory reports whether the notice concerns a directory.
func (n *Notice) Directory() bool { return n.Has(syscall.IN_ISDIR) }

// Open returns a new inotify instance.
func Open() (int, error) { return syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC) }

// Each decodes the bytes read from an instance.
func Each(b []byte, each func(*Notice)) {
	const head = syscall.SizeofInotifyEvent
	for len(b) >= head {
		raw := (*syscall.InotifyEvent)(unsafe.Pointer(&b[0]))
		end := head + int(raw.Len)
		if end > len(b) {
			return
		}
		name, _, _ := strings.Cut(string(b[head:end]), "\x00")
		each(&Notice{int(raw.Wd), raw.Mask, raw.Cookie, name})
		b = b[end:]
	}
}

// Watch watches the directory of an fd: the examined one, and never one that took its name.
func Watch(instance, fd int, mask uint32) (int, error) {
	return syscall.InotifyAddWatch(instance, "/proc/self/fd/"+strconv.Itoa(fd), mask)
}

// Unwatch removes a watch.
func Unwatch(instance, wd int) { _, _ = syscall.InotifyRmWatch(instance, uint32(wd)) }
