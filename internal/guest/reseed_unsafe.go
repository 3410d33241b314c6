package guest

import (
	"encoding/binary"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// Requests of /dev/random, from linux/random.h.
const (
	rndAddEntropy = 0x40085203
	rndReseedCRNG = 0x5207
)

// reseed mixes seed into the kernel's generator and reseeds it, so that its output from then on
// differs from every other copy's.
func reseed(seed []byte) error {
	fail := func(err error) error {
		return cell.Errorf(cell.Internal, "guest.Adopt", "", "cannot renew the randomness of the cell's kernel: %w", err)
	}
	f, err := os.OpenFile("/dev/urandom", os.O_RDWR, 0)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	pool := make([]byte, 8, 8+len(seed)) // struct rand_pool_info: bits, bytes, data
	binary.NativeEndian.PutUint32(pool, uint32(8*len(seed)))
	binary.NativeEndian.PutUint32(pool[4:], uint32(len(seed)))
	pool = append(pool, seed...)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), rndAddEntropy, uintptr(unsafe.Pointer(&pool[0]))); e != 0 {
		return fail(os.NewSyscallError("RNDADDENTROPY", e))
	}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), rndReseedCRNG, 0); e != 0 {
		return fail(os.NewSyscallError("RNDRESEEDCRNG", e))
	}
	return nil
}
