package linux

const initMachine = 62 // EM_X86_64

// loop: mov eax, 34 (pause); syscall; jmp loop
var initCode = []byte{0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7}
