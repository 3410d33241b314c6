package main

import (
	"crypto/rand"
	"fmt"
	mathrand "math/rand"
	v2 "math/rand/v2"
	"os"
	"runtime"
	"time"
)

// The generators of math/rand are those of a thread. It stays the same one here: otherwise
// the source and a copy draw the same numbers until one of them goes on in another thread,
// the generator of which they have in common, too.
func main() {
	runtime.LockOSThread()
	log, err := os.OpenFile("log-go", os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		panic(err)
	}
	for {
		var b [16]byte
		rand.Read(b[:])
		fmt.Fprintf(log, "crypto/rand %x\nmath/rand %x\nmath/rand/v2 %x\n", b, mathrand.Uint64(), v2.Uint64())
		time.Sleep(200 * time.Millisecond)
	}
}
