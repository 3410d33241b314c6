package ram

// pageSet is a set of pages of the image, which are of 4 KiB here whatever the
// processor's are.
type pageSet []uint64

const pageSize = 4096

func newPageSet(size int64) pageSet { return make(pageSet, (size/pageSize+63)/64) }

// add adds the pages of which there is a byte between two offsets.
func (s pageSet) add(from, end int64) {
	for p := from / pageSize; p*pageSize < end; p++ {
		s[p/64] |= 1 << (p % 64)
	}
}

// has says whether the page at an offset is in the set.
func (s pageSet) has(off int64) bool {
	p := off / pageSize
	return s[p/64]&(1<<(p%64)) != 0
}
