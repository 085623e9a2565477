package watch

import (
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

const (
	wanted = syscall.IN_CREATE | syscall.IN_MODIFY | syscall.IN_ATTRIB | syscall.IN_CLOSE_WRITE | syscall.IN_MOVED_FROM |
		syscall.IN_MOVED_TO | syscall.IN_DELETE | syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF | syscall.IN_ONLYDIR |
		syscall.IN_EXCL_UNLINK
	rootGone = syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF | syscall.IN_UNMOUNT
)

// notice is what the kernel says.
type notice struct {
	wd     int
	mask   uint32
	cookie uint32 // the two halves of a rename have the same
	name   string
}

func (n *notice) has(mask uint32) bool { return n.mask&mask != 0 }
func (n *notice) directory() bool      { return n.has(syscall.IN_ISDIR) }

// notices takes apart what was read from an inotify fd.
func notices(b []byte, each func(*notice)) {
	const head = syscall.SizeofInotifyEvent
	for len(b) >= head {
		raw := (*syscall.InotifyEvent)(unsafe.Pointer(&b[0]))
		end := head + int(raw.Len)
		if end > len(b) {
			return
		}
		name, _, _ := strings.Cut(string(b[head:end]), "\x00")
		each(&notice{int(raw.Wd), raw.Mask, raw.Cookie, name})
		b = b[end:]
	}
}

// addWatch watches the directory that an fd has open: what was looked at, and nothing that took its name.
func addWatch(inotify, fd int) (int, error) {
	return syscall.InotifyAddWatch(inotify, "/proc/self/fd/"+strconv.Itoa(fd), wanted)
}
