package main

var nr = numbers{
	acct: 163, addKey: 248, adjtimex: 159, bpf: 321, chroot: 161, clockAdjtime: 305, clockSettime: 227, deleteModule: 176,
	fanotifyInit: 300, finitModule: 313, initModule: 175, ioctl: 16, kcmp: 312, kexecFileLoad: 320, kexecLoad: 246,
	keyctl: 250, lookupDcookie: 212, mbind: 237, migratePages: 256, mount: 165, movePages: 279, nameToHandle: 303,
	nfsservctl: 180, openByHandle: 304, perfEventOpen: 298, personality: 135, pivotRoot: 155, prlimit: 302,
	processVMReadv: 310, processVMWritev: 311, quotactl: 179, reboot: 169, requestKey: 249, setdomainname: 171,
	sethostname: 170, setns: 308, settimeofday: 164, swapoff: 168, swapon: 167, syslog: 103, umount2: 166, unshare: 272,
	userfaultfd: 323, vhangup: 153,
}
