package main

// numbers are the calls with different numbers on different architectures; numbers_*.go fills them in.
type numbers struct {
	acct, addKey, adjtimex, bpf, chroot, clockAdjtime, clockSettime, deleteModule, fanotifyInit, finitModule uintptr
	initModule, ioctl, kcmp, kexecFileLoad, kexecLoad, keyctl, lookupDcookie, mbind, migratePages, mount     uintptr
	movePages, nameToHandle, nfsservctl, openByHandle, perfEventOpen, personality, pivotRoot, prlimit        uintptr
	processVMReadv, processVMWritev, quotactl, reboot, requestKey, setdomainname, sethostname, setns         uintptr
	settimeofday, swapoff, swapon, syslog, umount2, unshare, userfaultfd, vhangup                            uintptr
}
