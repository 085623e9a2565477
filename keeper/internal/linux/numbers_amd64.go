package linux

// Calls without a number in the syscall package, or with different names on different machines.
const (
	sysRenameat2     = 316
	sysCopyFileRange = 326
	sysFstatat       = 262
	SysSeccomp       = 317
)
