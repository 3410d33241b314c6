#include "textflag.h"

// func vforkClone3(args, size uintptr) (pid, errno uintptr)
//
// clone3 with CLONE_VM and CLONE_VFORK returns twice on one stack. The return
// address is in a register, of which parent and child have one each.
TEXT ·vforkClone3(SB), NOSPLIT|NOFRAME, $0-32
	MOVD args+0(FP), R0
	MOVD size+8(FP), R1
	MOVD $435, R8
	SVC
	CMN  $4095, R0
	BCC  worked
	MOVD $-1, R1
	MOVD R1, pid+16(FP)
	NEG  R0, R0
	MOVD R0, errno+24(FP)
	RET

worked:
	MOVD R0, pid+16(FP)
	MOVD ZR, errno+24(FP)
	RET
