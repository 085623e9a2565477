#include "textflag.h"

// func rawClone(flags uintptr) (pid uintptr, errno syscall.Errno)
TEXT ·rawClone(SB),NOSPLIT,$0-24
	MOVQ	flags+0(FP), DI
	XORQ	SI, SI
	XORQ	DX, DX
	XORQ	R10, R10
	XORQ	R8, R8
	MOVQ	$56, AX
	SYSCALL
	CMPQ	AX, $0
	JEQ	child
	JLT	failed
	MOVQ	AX, pid+8(FP)
	MOVQ	$0, errno+16(FP)
	RET
failed:
	NEGQ	AX
	MOVQ	$0, pid+8(FP)
	MOVQ	AX, errno+16(FP)
	RET
child:
	XORQ	DI, DI
	MOVQ	$231, AX
	SYSCALL
	INT	$3

// func int80(number uintptr) uintptr
TEXT ·int80(SB),NOSPLIT,$0-16
	MOVQ	number+0(FP), AX
	XORQ	BX, BX
	XORQ	CX, CX
	XORQ	DX, DX
	INT	$0x80
	MOVQ	AX, ret+8(FP)
	RET
