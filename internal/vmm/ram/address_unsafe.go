package ram

import "unsafe"

// addressOf returns the address of mapped memory.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
