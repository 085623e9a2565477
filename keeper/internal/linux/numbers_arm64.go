package linux

// Calls without a number in the syscall package, or with different names on different machines.
const (
	sysRenameat2     = 276
	sysCopyFileRange = 285
	sysFstatat       = 79
	SysSeccomp       = 277
)
