package turn

import (
	"strings"
	"unicode"

	"github.com/pando-dev/pando/internal/cell"
)

const maxModel = 100 // bytes of a model's name

// Use reads the body of an answer of a model for what that says of its use: JSON, an array of it, or
// server-sent events, with lines of JSON behind words without quotes. Its Write never fails.
//
// The figures of an answer that goes on are sums, so that the largest of each counts.
type Use struct {
	s     scanner
	in    int // depth of the object with the figures; 0 outside
	seen  bool
	model string

	input, output, thought, tool, within, read, write int64

	calls calls
}

// NewUse returns a reader of one answer.
func NewUse() *Use {
	u := &Use{}
	u.s.open, u.s.shut, u.s.text, u.s.num = u.open, u.shut, u.text, u.num
	return u
}

// Write implements io.Writer.
func (u *Use) Write(p []byte) (int, error) { return u.s.Write(p) }

// Found returns what the answer says. Without figures, it is one request, unseen.
func (u *Use) Found() cell.ModelUse {
	out := cell.ModelUse{Model: u.model, Requests: 1, Calls: u.calls.count()}
	if !u.seen {
		out.Unseen = 1
		return out
	}
	out.Input, out.Output = max(0, u.input+u.tool-u.within), u.output+u.thought
	out.CacheRead, out.CacheWrite = u.within+u.read, u.write
	return out
}

// outer reports whether the container of a depth is an event, an answer, or what it wraps: a part of a
// message, which the model makes up, is not.
func (u *Use) outer(depth int) bool {
	top := 1
	if !u.s.at(1).object {
		top = 2
	}
	f := u.s.at(depth)
	return f.object && (depth == top || depth == top+1 && (f.key == "message" || f.key == "response"))
}

func (u *Use) open(depth int) {
	f := u.s.at(depth)
	if u.in == 0 && depth > 1 && f.object && (f.key == "usage" || f.key == "usageMetadata") && u.outer(depth-1) {
		u.in = depth
	}
	u.calls.open(u, depth)
}

func (u *Use) shut(depth int) {
	if depth == u.in {
		u.in = 0
	}
	u.calls.shut(depth)
}

func (u *Use) text(depth int, raw []byte) {
	if name := u.s.at(depth).name; (name == "model" || name == "modelVersion") && depth > 0 && u.outer(depth) {
		u.model = modelName(unescape(raw))
	}
	u.calls.text(depth, u.s.at(depth).name, raw)
}

// modelName bounds the name of a model, and makes it printable.
func modelName(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, s)
	if len(s) > maxModel {
		s = strings.ToValidUTF8(s[:maxModel], "")
	}
	return s
}

func (u *Use) num(depth int, n int64) {
	if u.in == 0 || depth < u.in || depth > u.in+1 {
		return
	}
	f := u.s.at(depth)
	if depth == u.in+1 {
		if f.name == "cached_tokens" && (f.key == "input_tokens_details" || f.key == "prompt_tokens_details") {
			u.within = max(u.within, n)
		}
		return
	}
	var to *int64
	switch f.name {
	case "input_tokens", "prompt_tokens", "promptTokenCount":
		to = &u.input
	case "output_tokens", "completion_tokens", "candidatesTokenCount":
		to = &u.output
	case "thoughtsTokenCount":
		to = &u.thought
	case "toolUsePromptTokenCount":
		to = &u.tool
	case "cachedContentTokenCount":
		to = &u.within
	case "cache_read_input_tokens":
		to = &u.read
	case "cache_creation_input_tokens":
		to = &u.write
	default:
		return
	}
	*to, u.seen = max(*to, n), true
}
