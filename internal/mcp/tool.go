package mcp

import (
	"context"
	"errors"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/bound"
)

// answer is a tool's answer: the same content as text and as data.
type answer struct {
	text  string
	data  any // a struct or map of ours
	links []*sdk.ResourceLink
	more  []sdk.Content // pictures, for example
}

// effect is the effect of a tool, for clients that ask a person first.
type effect int

const (
	readOnly effect = iota // changes nothing
	makes                  // adds things
	changes                // may end or overwrite something inside cells
)

// add registers a tool, if the server's callers may use it. Its errors are answers for the
// agent: the call itself succeeds.
func add[In any](s *Server, name, title string, how effect, about string, do func(ctx context.Context, c *call, in In) (answer, error)) {
	if how != readOnly && !s.level.Allows(access.Run) {
		return
	}
	destructive, closed := how == changes, false
	sdk.AddTool(s.mcp, &sdk.Tool{Name: name, Title: title, Description: about, Annotations: &sdk.ToolAnnotations{
		Title: title, ReadOnlyHint: how == readOnly, IdempotentHint: how == readOnly, DestructiveHint: &destructive, OpenWorldHint: &closed,
	}}, func(ctx context.Context, req *sdk.CallToolRequest, in In) (*sdk.CallToolResult, any, error) {
		c := newCall(ctx, req)
		defer c.end()
		if err := bound.Unique(req.Params.Arguments, "the arguments", reflect.TypeFor[In]()); err != nil {
			return failed(err), nil, nil
		}
		a, err := do(ctx, c, in)
		if err != nil {
			return failed(err), nil, nil
		}
		res := &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: a.text}}}
		res.Content = append(res.Content, a.more...)
		for _, l := range a.links {
			res.Content = append(res.Content, l)
		}
		return res, a.data, nil
	})
}

// failed formats an error for an agent: what could not be done, and the hint.
func failed(err error) *sdk.CallToolResult {
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		e = &api.Error{Kind: "internal", Message: err.Error()}
	}
	text := e.Message
	if !strings.HasPrefix(text, "cannot ") {
		text = "cannot do it: " + text
	}
	if e.Hint != "" {
		hint := *e
		hint.Hint = toolHint(e.Hint)
		e, text = &hint, text+"\nhint: "+hint.Hint
	}
	return &sdk.CallToolResult{
		IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: text}}, StructuredContent: map[string]*api.Error{"error": e},
	}
}

// commandOf matches a command of the command line in a hint: all of it between backquotes, else
// its verb, with the flags behind it.
var commandOf = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("`pando ([a-z]+)( why)?[^`]*`|\\bpando (ls|rm|stop|run|exec|eval|fork|branch|checkpoint|restore|diff|show|policy|receipt|" +
		"template|doctor|resume|gc|discard|runs|credential|cp|approvals|undo|image|accept|serve|revert|df|daemon|upload|stats|logs|events|history)\\b( why| (?:ls|key|export|verify|show)\\b)?((?: --[a-z-]+)*)")
})

// toolHint rewrites a hint for a person at a terminal: it replaces commands by the tools of the
// same function. Other commands remain the user's.
func toolHint(hint string) string {
	users := false
	hint = commandOf().ReplaceAllStringFunc(hint, func(s string) string {
		m := commandOf().FindStringSubmatch(s)
		with, isTool := asArguments(m[5])
		if !isTool || m[4] != "" && m[4] != " why" && m[4] != " show" {
			users = true
			return s
		}
		switch verb := m[1] + m[3]; verb {
		case "ls":
			return "the tool list"
		case "rm":
			return "the tool kill"
		case "stop":
			return "the tool kill with keep"
		case "cp":
			return "the tools read_file and write_file"
		case "run", "exec", "eval", "fork", "branch", "checkpoint", "restore", "diff", "show", "receipt":
			return "the tool " + verb + with
		case "policy":
			if m[2]+m[4] == " why" {
				return "the tool policy_why"
			}
		}
		users = true
		return s
	})
	if users {
		hint += " (pando's commands are the user's, in a terminal)"
	}
	return hint
}

// asArguments returns the flags of a command as arguments of the tool, if the tools have them.
func asArguments(flags string) (with string, ok bool) {
	for i, f := range strings.Fields(flags) {
		switch f = strings.TrimPrefix(f, "--"); f {
		case "fresh", "kind", "files", "stat", "ignored":
			with += []string{" with ", " and "}[min(i, 1)] + f
		default:
			return "", false
		}
	}
	return with, true
}

// invalid makes an error about arguments.
func invalid(hint, message string) error {
	return &api.Error{Kind: "invalid", Message: message, Hint: hint}
}

// numbered is a number with its noun: 1 file, 2 processes.
func numbered(n int, noun string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(noun, "s"):
		noun += "es"
	default:
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

// lines joins what is not empty.
func lines(parts ...string) string {
	var out []string
	for _, p := range parts {
		if p = strings.TrimRight(p, "\n"); p != "" {
			out = append(out, p)
		}
	}
	return strings.Join(out, "\n")
}
