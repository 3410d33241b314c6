package hazard

import (
	"encoding/binary"
	"io"
	"testing"

	"github.com/pando-dev/pando/internal/bound/boundtest"
)

// sparse is a file of zeros with a beginning.
type sparse []byte

func (s sparse) ReadAt(b []byte, at int64) (int, error) {
	clear(b)
	if at < int64(len(s)) {
		copy(b, s[at:])
	}
	return len(b), nil
}

// A sparse file with nothing but tables of 64 MiB as sections is given up after the first.
func TestX02SectionsThatClaim(t *testing.T) {
	le := binary.LittleEndian
	b := make([]byte, 64+64*maxSections)
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint64(b[40:], 64)
	le.PutUint16(b[58:], 64)
	le.PutUint16(b[60:], maxSections)
	for i := range maxSections - 1 {
		s := b[64+64*(i+1):]
		le.PutUint32(s[4:], 11)
		le.PutUint64(s[24:], 1<<30)
		le.PutUint64(s[32:], 48<<20)
	}
	var file io.ReaderAt = sparse(b)
	boundtest.AllocatesBeside(t, len(b), maxTables, func() {
		if _, err := readELF(file, 1<<40); err == nil {
			t.Error("it is read")
		}
	})
}
