package linux

import (
	"bufio"
	"cmp"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// maxListening bounds how many ports are told.
const maxListening = 4096

// Listening lists the TCP ports that a network namespace listens on, by its files
// below dir: /proc/thread-self/net for the one that the thread is in.
func Listening(dir string) ([]cell.Listening, error) {
	list := []cell.Listening{}
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open(filepath.Join(dir, name))
		if name == "tcp6" && errors.Is(err, fs.ErrNotExist) { // no IPv6 here
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, readListening(f)...)
		f.Close()
	}
	slices.SortFunc(list, func(a, b cell.Listening) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), strings.Compare(a.Address, b.Address))
	})
	list = slices.Compact(list)
	return list[:min(len(list), maxListening)], nil
}

// readListening reads the kernel's table of sockets: "sl local_address
// rem_address st …", addresses in hexadecimal words of the host's order, 0A for one
// that listens. Lines that are not so say nothing.
func readListening(r io.Reader) (list []cell.Listening) {
	lines := bufio.NewScanner(r)
	for lines.Scan() && len(list) < maxListening {
		f := strings.Fields(lines.Text())
		if len(f) < 4 || f[3] != "0A" {
			continue
		}
		addr, port, ok := strings.Cut(f[1], ":")
		b, err := hex.DecodeString(addr)
		n, perr := strconv.ParseUint(port, 16, 16)
		if !ok || err != nil || perr != nil || len(b) != 4 && len(b) != 16 {
			continue
		}
		for i := 0; i < len(b); i += 4 { // little endian
			slices.Reverse(b[i : i+4])
		}
		a, _ := netip.AddrFromSlice(b)
		list = append(list, cell.Listening{Port: int(n), Address: a.Unmap().String()})
	}
	return list
}
