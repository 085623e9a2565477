package main

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

const tiocsti = 0x5412

// terminal describes stdin.
func terminal() {
	name, err := os.Readlink("/proc/self/fd/0")
	var st syscall.Stat_t
	if err == nil {
		err = syscall.Stat(name, &st)
	}
	var size struct{ rows, cols, width, height uint16 }
	_, _, e := syscall.Syscall(syscall.SYS_IOCTL, 0, syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size)))
	if err != nil || e != 0 {
		fmt.Println(err, e)
	}
	fmt.Printf("%s %d:%d %o %dx%d\n", name, st.Uid, st.Gid, st.Mode&0o7777, size.rows, size.cols)
	if tty, err := os.OpenFile("/dev/tty", os.O_WRONLY, 0); err == nil {
		fmt.Fprintln(tty, "controlling")
	}
	letter := byte('x')
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, 0, tiocsti, uintptr(unsafe.Pointer(&letter))); e != 0 {
		fmt.Println("ioctl TIOCSTI", e)
	}
}
