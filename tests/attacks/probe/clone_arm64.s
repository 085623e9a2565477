#include "textflag.h"

// func rawClone(flags uintptr) (pid uintptr, errno syscall.Errno)
TEXT ·rawClone(SB),NOSPLIT,$0-24
	MOVD	flags+0(FP), R0
	MOVD	$0, R1
	MOVD	$0, R2
	MOVD	$0, R3
	MOVD	$0, R4
	MOVD	$220, R8
	SVC
	CMP	$0, R0
	BEQ	child
	BLT	failed
	MOVD	R0, pid+8(FP)
	MOVD	$0, R1
	MOVD	R1, errno+16(FP)
	RET
failed:
	NEG	R0, R0
	MOVD	$0, R1
	MOVD	R1, pid+8(FP)
	MOVD	R0, errno+16(FP)
	RET
child:
	MOVD	$0, R0
	MOVD	$94, R8
	SVC
	RET
