package linux

// Calls that the syscall package has no number for, or not the same name on all machines.
const (
	sysRenameat2     = 316
	sysCopyFileRange = 326
	sysFstatat       = 262
)
