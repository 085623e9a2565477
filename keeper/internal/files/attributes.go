package files

import (
	"bytes"
	"strings"
	"syscall"
	"unicode/utf8"
	"unsafe"

	"skerry/keeper/internal/linux"
)

const (
	// attributePrefix begins the names of the extended attributes that callers read and write, and that are shown without
	// it.
	attributePrefix = "user.e2b."
	maxAttributes   = 64 << 10 // bytes of names, and of a value: the kernel's limits
)

// readAttributes returns the extended attributes of a file or directory. An entry that cannot be read has none.
func readAttributes(dir int, name string) map[string]string {
	path, err := syscall.Openat(dir, name, linux.OPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer closeAll(path)
	var st syscall.Stat_t
	if err := syscall.Fstat(path, &st); err != nil || isOwnProcFile(path) {
		return nil
	}
	if k := kind(st.Mode); k != "file" && k != "directory" {
		return nil
	}
	fd, err := Reopen(path, syscall.O_RDONLY|syscall.O_NONBLOCK)
	if err != nil {
		return nil
	}
	defer closeAll(fd)
	names := make([]byte, maxAttributes)
	n, err := getAttribute(syscall.SYS_FLISTXATTR, fd, "", names)
	if err != nil || n == 0 {
		return nil
	}
	var found map[string]string
	for _, name := range bytes.Split(names[:n-1], []byte{0}) {
		short, ok := strings.CutPrefix(string(name), attributePrefix)
		if !ok {
			continue
		}
		value := make([]byte, maxAttributes)
		n, err := getAttribute(syscall.SYS_FGETXATTR, fd, string(name), value)
		if err != nil || !utf8.Valid(value[:n]) || !utf8.ValidString(short) {
			continue
		}
		if found == nil {
			found = map[string]string{}
		}
		found[short] = string(value[:n])
	}
	return found
}

// getAttribute calls flistxattr, or fgetxattr with a name.
func getAttribute(call uintptr, fd int, name string, value []byte) (int, error) {
	buffer := uintptr(unsafe.Pointer(&value[0]))
	var n uintptr
	var errno syscall.Errno
	if call == syscall.SYS_FLISTXATTR {
		n, _, errno = syscall.Syscall(call, uintptr(fd), buffer, uintptr(len(value)))
	} else {
		p, err := syscall.BytePtrFromString(name)
		if err != nil {
			return 0, err
		}
		n, _, errno = syscall.Syscall6(call, uintptr(fd), uintptr(unsafe.Pointer(p)), buffer, uintptr(len(value)), 0, 0)
	}
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// setAttributes sets extended attributes of a new file. Some file systems have none; then they are left out.
func setAttributes(fd int, attributes map[string]string) error {
	for name, value := range attributes {
		p, err := syscall.BytePtrFromString(attributePrefix + name)
		if err != nil {
			return syscall.EINVAL
		}
		v := append([]byte(value), 0) // never empty, so that it has an address
		_, _, errno := syscall.Syscall6(
			syscall.SYS_FSETXATTR, uintptr(fd), uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(&v[0])),
			uintptr(len(value)), 0, 0,
		)
		if errno != 0 && errno != syscall.EOPNOTSUPP {
			return errno
		}
	}
	return nil
}
