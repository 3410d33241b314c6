#include "textflag.h"

// func vforkClone3(args, size uintptr) (pid, errno uintptr)
//
// clone3 with CLONE_VM and CLONE_VFORK returns twice on one stack. What the
// child calls overwrites our return address there, so it is held in a register,
// of which each has its own.
TEXT ·vforkClone3(SB), NOSPLIT|NOFRAME, $0-32
	MOVQ args+0(FP), DI
	MOVQ size+8(FP), SI
	MOVQ $435, AX
	POPQ R12
	SYSCALL
	PUSHQ R12
	CMPQ AX, $0xfffffffffffff001
	JCC  failed
	MOVQ AX, pid+16(FP)
	MOVQ $0, errno+24(FP)
	RET

failed:
	NEGQ AX
	MOVQ $-1, pid+16(FP)
	MOVQ AX, errno+24(FP)
	RET
