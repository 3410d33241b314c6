package ram

// pageSet is a set of 4 KiB pages of the image, independent of the processor's page size.
type pageSet []uint64

const pageSize = 4096

func newPageSet(size int64) pageSet { return make(pageSet, (size/pageSize+63)/64) }

// add adds the pages with bytes between two offsets.
func (s pageSet) add(from, end int64) {
	for p := from / pageSize; p*pageSize < end; p++ {
		s[p/64] |= 1 << (p % 64)
	}
}

// has reports whether the page at an offset is in the set.
func (s pageSet) has(off int64) bool {
	p := off / pageSize
	return s[p/64]&(1<<(p%64)) != 0
}
