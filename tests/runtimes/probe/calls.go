package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

type try struct {
	name   string
	number uintptr
	args   [6]uintptr
}

var (
	empty = uintptr(unsafe.Pointer(&[]byte{0}[0]))
	room  = uintptr(unsafe.Pointer(&[4096]byte{}))
)

// tries uses the numbers of x86_64 where they differ; those from 424 on are the same everywhere.
func tries() []try {
	list := []try{
		{"clone3", 435, [6]uintptr{room, 88}},
		{"open_tree", 428, [6]uintptr{0, empty, 1}},
		{"move_mount", 429, [6]uintptr{}},
		{"fsopen", 430, [6]uintptr{empty, 0}},
		{"fsconfig", 431, [6]uintptr{}},
		{"fsmount", 432, [6]uintptr{}},
		{"fspick", 433, [6]uintptr{0, empty}},
		{"pidfd_getfd", 438, [6]uintptr{}},
		{"mount_setattr", 442, [6]uintptr{}},
		{"io_uring_setup", 425, [6]uintptr{8, room}},
		{"io_uring_enter", 426, [6]uintptr{}},
		{"io_uring_register", 427, [6]uintptr{}},
		{"statmount", 457, [6]uintptr{}},
		{"listmount", 458, [6]uintptr{}},
		{"far_future", 900, [6]uintptr{}},
	}
	if runtime.GOARCH == "amd64" {
		list = append(list, amd64()...)
	}
	return list
}

func amd64() []try {
	const newNamespaces = 0x7E020000
	list := []try{
		{"unshare_user", 272, [6]uintptr{0x10000000}},
		{"unshare_net", 272, [6]uintptr{0x40000000}},
		{"unshare_mount", 272, [6]uintptr{0x20000}},
		{"unshare_time", 272, [6]uintptr{0x80}},
		{"unshare_files", 272, [6]uintptr{0x400}},
		{"clone_user", 56, [6]uintptr{0x10000000 | 17}},
		{"clone_all", 56, [6]uintptr{newNamespaces | 17}},
		{"setns", 308, [6]uintptr{0, 0}},
		{"mount", 165, [6]uintptr{empty, empty, empty, 0, 0}},
		{"umount2", 166, [6]uintptr{empty, 0}},
		{"pivot_root", 155, [6]uintptr{empty, empty}},
		{"chroot", 161, [6]uintptr{empty}},
		{"bpf", 321, [6]uintptr{0, room, 128}},
		{"keyctl", 250, [6]uintptr{0, 0}},
		{"add_key", 248, [6]uintptr{empty, empty, room, 1, 0}},
		{"request_key", 249, [6]uintptr{empty, empty, 0, 0}},
		{"userfaultfd", 323, [6]uintptr{1}},
		{"perf_event_open", 298, [6]uintptr{room, 0, ^uintptr(0), ^uintptr(0), 0}},
		{"process_vm_readv", 310, [6]uintptr{uintptr(os.Getpid())}},
		{"process_vm_writev", 311, [6]uintptr{uintptr(os.Getpid())}},
		{"kcmp", 312, [6]uintptr{uintptr(os.Getpid()), uintptr(os.Getpid()), 0, 0, 0}},
		{"open_by_handle_at", 304, [6]uintptr{0, room, 0}},
		{"name_to_handle_at", 303, [6]uintptr{0, empty, room, room, 0}},
		{"init_module", 175, [6]uintptr{room, 1, empty}},
		{"finit_module", 313, [6]uintptr{0, empty, 0}},
		{"delete_module", 176, [6]uintptr{empty, 0}},
		{"kexec_load", 246, [6]uintptr{}},
		{"kexec_file_load", 320, [6]uintptr{}},
		{"reboot", 169, [6]uintptr{}},
		{"swapon", 167, [6]uintptr{empty}},
		{"swapoff", 168, [6]uintptr{empty}},
		{"syslog", 103, [6]uintptr{10, 0, 0}},
		{"acct", 163, [6]uintptr{0}},
		{"iopl", 172, [6]uintptr{0}},
		{"ioperm", 173, [6]uintptr{0, 1, 1}},
		{"quotactl", 179, [6]uintptr{}},
		{"fanotify_init", 300, [6]uintptr{}},
		{"settimeofday", 164, [6]uintptr{room, 0}},
		{"clock_settime", 227, [6]uintptr{0, room}},
		{"sethostname", 170, [6]uintptr{empty, 0}},
		{"vhangup", 153, [6]uintptr{}},
		{"lookup_dcookie", 212, [6]uintptr{}},
		{"modify_ldt", 154, [6]uintptr{0, room, 1}},
		{"personality_mmap_low", 135, [6]uintptr{0x0100000}},
		{"personality_query", 135, [6]uintptr{0xffffffff}},
		{"personality_no_random", 135, [6]uintptr{0x40000}},
		{"tiocsti", 16, [6]uintptr{0, 0x5412, empty}},
		{"tiocsti_high_bits", 16, [6]uintptr{0, 1<<32 | 0x5412, empty}},
		{"tiocgwinsz", 16, [6]uintptr{0, 0x5413, room}},
		{"mknod_device", 133, [6]uintptr{empty, 0o20600, 1<<8 | 3}},
		{"setrlimit_core", 160, [6]uintptr{4, room}},
		{"setrlimit_core_high_bits", 160, [6]uintptr{1<<32 | 4, room}},
		{"prlimit_core_high_bits", 302, [6]uintptr{0, 1<<32 | 4, room, 0}},
		{"prlimit_core_read", 302, [6]uintptr{0, 4, 0, room}},
		{"socket_unix", 41, [6]uintptr{1, 1, 0}},
		{"socket_inet_tcp", 41, [6]uintptr{2, 1, 0}},
		{"socket_inet_udp", 41, [6]uintptr{2, 2, 17}},
		{"socket_inet6_tcp", 41, [6]uintptr{10, 1, 6}},
		{"socket_inet_raw", 41, [6]uintptr{2, 3, 1}},
		{"socket_inet_sctp", 41, [6]uintptr{2, 1, 132}},
		{"socket_inet_mptcp", 41, [6]uintptr{2, 1, 262}},
		{"socket_inet_high_bits", 41, [6]uintptr{1<<32 | 40, 1, 0}},
		{"socket_netlink_route", 41, [6]uintptr{16, 3, 0}},
		{"socketpair_unix", 53, [6]uintptr{1, 1, 0, room}},
	}
	for _, family := range []uintptr{0, 3, 4, 5, 9, 15, 17, 21, 29, 30, 31, 38, 39, 40, 42, 43, 44, 45} {
		list = append(list, try{fmt.Sprintf("socket_family_%d", family), 41, [6]uintptr{family, 2, 0}})
	}
	for protocol := uintptr(1); protocol < 22; protocol++ {
		list = append(list, try{fmt.Sprintf("socket_netlink_%d", protocol), 41, [6]uintptr{16, 3, protocol}})
	}
	return list
}

// calls returns each call's errno, 0 if it was permitted and worked.
func calls() map[string]int {
	found := map[string]int{}
	for _, t := range tries() {
		runtime.LockOSThread()
		_, _, number := syscall.RawSyscall6(t.number, t.args[0], t.args[1], t.args[2], t.args[3], t.args[4], t.args[5])
		found[t.name] = int(number)
	}
	return found
}

// foreign makes a call through another ABI of the same CPU. The thread (runc) or the process (crun) is killed for it.
func foreign(which string) {
	tid := make(chan int, 1)
	go func() {
		runtime.LockOSThread()
		tid <- syscall.Gettid()
		pid, _, number := syscall.RawSyscall(0x40000000|39, 0, 0, 0)
		fmt.Println(which, "getpid:", pid, int(number))
		os.Exit(0)
	}()
	task := fmt.Sprintf("/proc/self/task/%d", <-tid)
	for n := 0; n < 1000; n++ {
		if stat, err := os.ReadFile(task + "/stat"); err != nil || bytes.Contains(stat, []byte(") Z ")) {
			fmt.Println("the thread was killed")
			os.Exit(31)
		}
		time.Sleep(5 * time.Millisecond)
	}
	fmt.Println("nothing happened")
}

// group tries operations on the cgroup fd and reports each step with its error.
func group() {
	fmt.Println("mkdir", text(syscall.Mkdirat(4, "c1", 0o755)))
	procs, err := syscall.Openat(4, "c1/cgroup.procs", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	fmt.Println("open", text(err))
	_, err = syscall.Write(procs, []byte("0"))
	fmt.Println("join", text(err))
	up, err := syscall.Openat(4, "../cgroup.procs", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	here, _ := syscall.Openat(4, "cgroup.procs", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	var one, two syscall.Stat_t
	syscall.Fstat(up, &one)
	syscall.Fstat(here, &two)
	fmt.Println("up is here", err == nil && one.Ino == two.Ino)
	limit, err := syscall.Openat(4, "cgroup.max.descendants", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	_ = limit
	fmt.Println("limit", text(err))
}
