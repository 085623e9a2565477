package linux

// Calls that the syscall package has no number for, or not the same name on all machines.
const (
	sysRenameat2     = 276
	sysCopyFileRange = 285
	sysFstatat       = 79
)
