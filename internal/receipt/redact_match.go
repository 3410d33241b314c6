package receipt

// A needle is a text that is looked for.
type needle struct {
	text   string
	base64 bool // the inner characters of a value in base64
}

// A matcher finds all needles in one pass over a text: Aho and Corasick,
// "Efficient string matching", 1975. Children of a state are a linked list,
// except those of the root; deep states have mostly one.
type matcher struct {
	root    [256]int32
	states  []matchState
	needles []needle
}

type matchState struct {
	child, sibling int32
	fail           int32
	needle         int32 // the longest that ends here, as index plus one
	char           byte
}

func newMatcher() *matcher { return &matcher{states: make([]matchState, 1)} }

// next returns the child of state for char, 0 when there is none.
func (m *matcher) next(state int32, char byte) int32 {
	if state == 0 {
		return m.root[char]
	}
	c := m.states[state].child
	for c != 0 && m.states[c].char != char {
		c = m.states[c].sibling
	}
	return c
}

func (m *matcher) add(n needle) {
	state := int32(0)
	for i := range len(n.text) {
		c := m.next(state, n.text[i])
		if c == 0 {
			c = int32(len(m.states))
			m.states = append(m.states, matchState{char: n.text[i], sibling: m.states[state].child})
			m.states[state].child = c
			if state == 0 {
				m.root[n.text[i]] = c
			}
		}
		state = c
	}
	m.needles = append(m.needles, n)
	m.states[state].needle = int32(len(m.needles))
}

// link computes where matching goes on after a mismatch. It is called once,
// after the last add.
func (m *matcher) link() {
	queue := []int32{0}
	for len(queue) > 0 {
		state := queue[0]
		queue = queue[1:]
		for c := m.states[state].child; c != 0; c = m.states[c].sibling {
			queue = append(queue, c)
			if state == 0 {
				continue
			}
			f := m.states[state].fail
			for f != 0 && m.next(f, m.states[c].char) == 0 {
				f = m.states[f].fail
			}
			f = m.next(f, m.states[c].char)
			m.states[c].fail = f
			if m.states[c].needle == 0 {
				m.states[c].needle = m.states[f].needle
			}
		}
	}
}

// find calls found for each place where a needle ends, with the longest that
// ends there.
func (m *matcher) find(text []byte, found func(n needle, end int)) {
	state := int32(0)
	for i, char := range text {
		c := m.next(state, char)
		for c == 0 && state != 0 {
			state = m.states[state].fail
			c = m.next(state, char)
		}
		state = c
		if n := m.states[state].needle; n != 0 {
			found(m.needles[n-1], i+1)
		}
	}
}
