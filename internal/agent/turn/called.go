package turn

import (
	"hash/fnv"
	"slices"
)

// maxCalled bounds the calls of one answer that are told apart; more are not counted.
const maxCalled = 1 << 10

// calls counts the calls of tools in an answer. A stream has one several times (when it begins, when it is complete, in the
// complete answer at its end), with the same id. What a model makes up within a call's input is none.
type calls struct {
	item     int    // depth of the object that may be a call; 0 outside
	function bool   // which is one, whatever its type
	kind, id string // its members
	seen     []uint64
	unnamed  int64 // of a form without ids
}

func (c *calls) count() int64 { return int64(len(c.seen)) + c.unnamed }

func (c *calls) open(u *Use, depth int) {
	if !u.s.at(depth).object || depth < 2 {
		return
	}
	key := func(up int) string {
		if depth-up < 1 {
			return ""
		}
		return u.s.at(depth - up).key
	}
	outer := func(up int) bool { return depth-up >= 1 && u.outer(depth-up) }
	switch {
	case key(0) == "functionCall" && key(2) == "parts" && key(3) == "content" && key(5) == "candidates" && outer(6):
		if c.unnamed < maxCalled {
			c.unnamed++
		}
	case (key(0) == "content_block" || key(0) == "item") && outer(1), key(0) == "" && (key(1) == "content" || key(1) == "output") && outer(2):
		c.item, c.function = depth, false
	case key(0) == "" && key(1) == "tool_calls" && (key(2) == "delta" || key(2) == "message") && key(4) == "choices" && outer(5):
		c.item, c.function = depth, true
	default:
		return
	}
	c.kind, c.id = "", ""
}

func (c *calls) text(depth int, name string, raw []byte) {
	if c.item == 0 || depth != c.item {
		return
	}
	switch name {
	case "type":
		c.kind = unescape(raw)
	case "id":
		if c.id == "" {
			c.id = unescape(raw)
		}
	case "call_id": // an item has an id of its own beside it
		c.id = unescape(raw)
	}
}

func (c *calls) shut(depth int) {
	if c.item == 0 || depth != c.item {
		return
	}
	c.item = 0
	if c.id == "" || !c.function && !slices.Contains([]string{"tool_use", "function_call", "custom_tool_call", "local_shell_call"}, c.kind) {
		return
	}
	h := fnv.New64a()
	h.Write([]byte(c.id))
	if id := h.Sum64(); len(c.seen) < maxCalled && !slices.Contains(c.seen, id) {
		c.seen = append(c.seen, id)
	}
}
