package credential

// An automaton finds all needles in one pass: Aho and Corasick, "Efficient
// string matching", 1975, as a full table, since the same few needles are
// looked for in a great deal of text.
type automaton struct {
	class   [256]uint16 // which column of the table a byte is
	columns uint32
	// next holds, for each state times columns plus a column, the next state
	// times columns, with ends in the top bit when a needle ends there.
	next    []uint32
	begins  [256]uint32      // where a byte leads from the beginning
	endings map[uint32][]int // needles that end in a state (times columns)
	needles []needle
}

const ends = 1 << 31

func newAutomaton(list []needle) *automaton {
	a := &automaton{columns: 1, endings: map[uint32][]int{}, needles: list}
	for _, n := range list {
		for i := range len(n.text) {
			if c := n.text[i]; a.class[c] == 0 {
				a.class[c] = uint16(a.columns)
				a.columns++
			}
		}
	}
	row := func() { a.next = append(a.next, make([]uint32, a.columns)...) }
	row()
	finals := map[uint32][]int{}
	for k, n := range list {
		state := uint32(0)
		for i := range len(n.text) {
			cell := state + uint32(a.class[n.text[i]])
			if a.next[cell] == 0 {
				a.next[cell] = uint32(len(a.next))
				row()
			}
			state = a.next[cell]
		}
		finals[state] = append(finals[state], k)
	}
	// Breadth first: where a state has no child, it goes on as its longest
	// proper suffix that is a state would.
	fail := map[uint32]uint32{}
	queue := []uint32{0}
	for len(queue) > 0 {
		state := queue[0]
		queue = queue[1:]
		if state != 0 {
			finals[state] = append(finals[state], finals[fail[state]]...)
		}
		for c := range a.columns {
			child := a.next[state+c]
			switch {
			case child != 0 && state == 0:
				fail[child] = 0
			case child != 0:
				fail[child] = a.next[fail[state]+c]
			case state != 0:
				a.next[state+c] = a.next[fail[state]+c]
			}
			if child != 0 {
				queue = append(queue, child)
			}
		}
	}
	for state, list := range finals {
		if len(list) > 0 {
			a.endings[state] = list
		}
	}
	for i, state := range a.next {
		if a.endings[state] != nil {
			a.next[i] |= ends
		}
	}
	for c := range a.begins {
		a.begins[c] = a.next[a.class[c]]
	}
	return a
}

// run goes on from a state through a text. found is called for each needle,
// with where it ends in the text.
func (a *automaton) run(state uint32, text []byte, found func(needle, end int)) uint32 {
	next, class := a.next, &a.class
	for i := 0; i < len(text); i++ {
		if state == 0 { // nearly always: what begins no needle is passed over
			for a.begins[text[i]] == 0 {
				if i++; i == len(text) {
					return 0
				}
			}
			state = a.begins[text[i]]
		} else {
			state = next[state+uint32(class[text[i]])]
		}
		if state >= ends {
			state &^= ends
			for _, n := range a.endings[state] {
				found(n, i+1)
			}
		}
	}
	return state
}
