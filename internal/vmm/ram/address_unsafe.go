package ram

import "unsafe"

// addressOf is where memory lies that was mapped.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
