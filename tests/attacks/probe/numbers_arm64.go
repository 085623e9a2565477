package main

var nr = numbers{
	acct: 89, addKey: 217, adjtimex: 171, bpf: 280, chroot: 51, clockAdjtime: 266, clockSettime: 112, deleteModule: 106,
	fanotifyInit: 262, finitModule: 273, initModule: 105, ioctl: 29, kcmp: 272, kexecFileLoad: 294, kexecLoad: 104,
	keyctl: 219, lookupDcookie: 18, mbind: 235, migratePages: 238, mount: 40, movePages: 239, nameToHandle: 264,
	nfsservctl: 42, openByHandle: 265, perfEventOpen: 241, personality: 92, pivotRoot: 41, prlimit: 261,
	processVMReadv: 270, processVMWritev: 271, quotactl: 60, reboot: 142, requestKey: 218, setdomainname: 162,
	sethostname: 161, setns: 268, settimeofday: 170, swapoff: 225, swapon: 224, syslog: 116, umount2: 39, unshare: 97,
	userfaultfd: 282, vhangup: 58,
}
