package linux

import (
	"strconv"
	"syscall"
	"unsafe"
)

const (
	ptmx              = "/dev/pts/ptmx"
	ptmxDevice        = 5<<8 | 2
	devptsMagic       = 0x1cd1
	tiocsptlck        = 0x40045431
	tiocgptpeer       = 0x5441
	terminalMode      = 0o620 // writable by its group, which the mount sets
	vDisabled    byte = 0
)

// Window is the size of a terminal in characters.
type Window struct{ Rows, Cols, width, height uint16 }

func ioctl(fd int, request uintptr, argument unsafe.Pointer) error {
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), request, uintptr(argument)); e != 0 {
		return e
	}
	return nil
}

// OpenTerminal makes a terminal for a user. The outer end is non-blocking; a program gets the inner one, obtained with
// TIOCGPTPEER. No path is involved: whatever root inside has put in /dev/pts, the inner end belongs to this terminal.
func OpenTerminal(uid uint32, size Window) (outer, inner int, err error) {
	if outer, err = openMultiplexer(); err != nil {
		return -1, -1, err
	}
	defer func() {
		if err != nil {
			_ = syscall.Close(outer)
		}
	}()
	var unlocked int32
	if err = ioctl(outer, tiocsptlck, unsafe.Pointer(&unlocked)); err != nil {
		return -1, -1, err
	}
	if err = prepare(outer, size); err != nil {
		return -1, -1, err
	}
	fd, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(outer), tiocgptpeer,
		syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC)
	if e != 0 {
		return -1, -1, e
	}
	inner = int(fd)
	if err = syscall.Fchown(inner, int(uid), -1); err == nil {
		err = syscall.Fchmod(inner, terminalMode)
	}
	if err != nil {
		_ = syscall.Close(inner)
		return -1, -1, err
	}
	return outer, inner, nil
}

// prepare sets the size, and IUTF8, without which line editing would erase bytes instead of characters.
func prepare(fd int, size Window) error {
	settings, err := Settings(fd)
	if err != nil {
		return err
	}
	settings.Iflag |= syscall.IUTF8
	if err := Set(fd, settings); err != nil {
		return err
	}
	return Resize(fd, size)
}

// openMultiplexer examines the file before opening it (device 5:2 on a devpts): root inside may have replaced it.
func openMultiplexer() (int, error) {
	path, err := openat2(atFdCwd, ptmx, oPath|syscall.O_NOFOLLOW, 0, resolveNoLinks)
	if err != nil {
		return -1, err
	}
	defer func() { _ = syscall.Close(path) }()
	var st syscall.Stat_t
	var fs syscall.Statfs_t
	if err = syscall.Fstat(path, &st); err == nil {
		err = syscall.Fstatfs(path, &fs)
	}
	switch {
	case err != nil:
		return -1, err
	case st.Mode&syscall.S_IFMT != syscall.S_IFCHR || st.Rdev != ptmxDevice || fs.Type != devptsMagic:
		return -1, syscall.ENODEV
	}
	const flags = syscall.O_RDWR | syscall.O_NOCTTY | syscall.O_NONBLOCK | syscall.O_CLOEXEC
	return syscall.Open("/proc/self/fd/"+strconv.Itoa(path), flags, 0)
}

// GiveTerminal makes a user the owner of a terminal's inner end, if it belonged to the process that passed it.
func GiveTerminal(inner int, from, to uint32) {
	var st syscall.Stat_t
	var fs syscall.Statfs_t
	if syscall.Fstat(inner, &st) == nil && syscall.Fstatfs(inner, &fs) == nil && fs.Type == devptsMagic &&
		st.Rdev != ptmxDevice && st.Uid == from {
		_ = syscall.Fchown(inner, int(to), -1)
	}
}

// Resize changes a terminal's size; the kernel sends SIGWINCH.
func Resize(fd int, size Window) error { return ioctl(fd, syscall.TIOCSWINSZ, unsafe.Pointer(&size)) }

// SizeOf returns a terminal's size.
func SizeOf(fd int) (size Window, err error) {
	err = ioctl(fd, syscall.TIOCGWINSZ, unsafe.Pointer(&size))
	return size, err
}

// Settings returns the settings of a terminal, or an error for other files.
func Settings(fd int) (settings syscall.Termios, err error) {
	err = ioctl(fd, syscall.TCGETS, unsafe.Pointer(&settings))
	return settings, err
}

// Set changes a terminal's settings.
func Set(fd int, settings syscall.Termios) error {
	return ioctl(fd, syscall.TCSETS, unsafe.Pointer(&settings))
}

// Raw returns settings that pass every byte unchanged.
func Raw(settings syscall.Termios) syscall.Termios {
	settings.Iflag &^= syscall.IGNBRK | syscall.BRKINT | syscall.PARMRK | syscall.ISTRIP | syscall.INLCR | syscall.IGNCR |
		syscall.ICRNL | syscall.IXON
	settings.Oflag &^= syscall.OPOST
	settings.Lflag &^= syscall.ECHO | syscall.ECHONL | syscall.ICANON | syscall.ISIG | syscall.IEXTEN
	settings.Cflag = settings.Cflag&^(syscall.CSIZE|syscall.PARENB) | syscall.CS8
	settings.Cc[syscall.VMIN], settings.Cc[syscall.VTIME] = 1, 0
	return settings
}

// InForeground reports whether this process may read and change its terminal without being stopped.
func InForeground(fd int) bool {
	var group int32
	return ioctl(fd, syscall.TIOCGPGRP, unsafe.Pointer(&group)) == nil && int(group) == syscall.Getpgrp()
}

// EOFCharacter returns the character that ends the input of a terminal, if any.
func EOFCharacter(fd int) (byte, bool) {
	settings, err := Settings(fd)
	return settings.Cc[syscall.VEOF], err == nil && settings.Cc[syscall.VEOF] != vDisabled
}
