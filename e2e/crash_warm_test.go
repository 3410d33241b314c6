package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/testenv"
)

// warmActs are those of templates and interpreters.
var warmActs = []act{
	{name: "template build", needs: "python3", may: []string{"-"}, prepare: func(h *host, c string) {}, do: func(h *host, c string) outcome {
		return h.try("template", "build", c+"-t", "--from", h.src, "--setup", "x = 1; "+writesNew)
	}},
	{name: "template built anew", needs: "python3", may: []string{"-"}, keeps: true, prepare: func(h *host, c string) { warmed(h, c+"-t") }, do: func(h *host, c string) outcome {
		return h.try("template", "build", c+"-t", "--from", h.src, "--setup", "x = 2")
	}},
	{name: "template warmed again", needs: "python3", may: []string{"-", "old", "new"}, keeps: true, prepare: cold, do: func(h *host, c string) outcome {
		return h.try("fork", c+"-t", "--name", c+"-f", "--eval", writesNew)
	}},
	{name: "template rm", needs: "python3", may: []string{"-", "old"}, prepare: func(h *host, c string) {
		warmed(h, c+"-t")
		h.pando("fork", c+"-t", "--name", c+"-f")
	}, do: func(h *host, c string) outcome { return h.try("template", "rm", c+"-t", "--cascade") }},
	{name: "fork of a template", needs: "python3", may: []string{"-", "old", "new"}, keeps: true, prepare: func(h *host, c string) { warmed(h, c+"-t") }, do: func(h *host, c string) outcome {
		return h.try("fork", c+"-t", "-n", "3", "--name", c+"-f", "--eval", writesNew)
	}},
	{name: "first evaluation", needs: "python3", may: []string{"old", "new"}, prepare: made, do: func(h *host, c string) outcome {
		return h.try("eval", c, writesNew)
	}, asks: "40 + 2", says: []string{"42"}},
	{name: "evaluation", needs: "python3", may: []string{"old", "new"}, prepare: evaluated, do: func(h *host, c string) outcome {
		return h.try("eval", c, "x += 1; "+writesNew)
	}, asks: "x", says: []string{"41", "42"}},
	{name: "branch", needs: "python3", may: []string{"new"}, prepare: func(h *host, c string) {
		evaluated(h, c)
		h.pando("eval", c, writesNew)
	}, do: func(h *host, c string) outcome {
		return h.try("branch", c, "-n", "2", "--name", c+"-f")
	}, asks: `open("g", "a").write("more"); x, open("f").read(), open("g").read()`, says: []string{"(41, 'new', 'more')"}},
	{name: "branch of a fork", needs: "python3", may: []string{"-", "new"}, prepare: func(h *host, c string) {
		warmed(h, c+"-t")
		h.pando("fork", c+"-t", "--name", c, "--eval", "x = 41; "+writesNew)
	}, do: func(h *host, c string) outcome {
		return h.try("branch", c, "-n", "2", "--name", c+"-f")
	}, keeps: true, asks: `open("g", "a").write("more"); x, open("f").read(), open("g").read()`, says: []string{"(41, 'new', 'more')"}},
}

// writesNew is an evaluation with the effect of the runs, atomically: it may be cut off with its
// interpreter.
const writesNew = `import os; n = open("f.new", "w").write("new"); os.rename("f.new", "f")`

func warmed(h *host, c string) { h.pando("template", "build", c, "--from", h.src, "--setup", "x = 1") }

// cold makes a template and ends its interpreter.
func cold(h *host, c string) {
	warmed(h, c+"-t")
	h.killKeeper(decoded[api.Template](h, "template", "show", c+"-t").Cell)
	for until := time.Now().Add(testenv.Patience()); decoded[api.Template](h, "template", "show", c+"-t").State != "cold"; {
		if time.Now().After(until) {
			h.t.Fatal("the template does not go cold")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// evaluated makes a cell with an interpreter in which x is 41.
func evaluated(h *host, c string) {
	made(h, c)
	h.pando("eval", c, "x = 41")
}

// asked evaluates the act's code in a cell. The interpreter lives when only the daemon was
// killed; else an error reports its end, and a new one can be started.
func (c *crash) asked(a act, cl api.Cell, bad func(string, ...any)) {
	if a.asks == "" {
		return
	}
	o := c.try("eval", cl.ID, a.asks)
	switch {
	case o.code == 0 && slices.Contains(a.says, strings.TrimSpace(o.out)):
	case o.code != 0 && c.role == "keeper" && strings.Contains(o.stderr, "its interpreter is gone"):
		if o := c.try("eval", cl.ID, "--fresh", "6 * 7"); o.code != 0 || strings.TrimSpace(o.out) != "42" {
			bad("cell %s can't have another interpreter: exit code %d, %s%s", cl.Name, o.code, o.out, o.stderr)
		}
	default:
		bad("cell %s says %q: exit code %d, %s", cl.Name, o.out, o.code, o.stderr)
	}
}

// templates checks that each template is warm, or can be warmed again, and
// removes it.
func (c *crash) templates(a act, bad func(string, ...any)) {
	var list []api.Template
	if o := c.try("template", "ls", "--json"); o.code != 0 || json.Unmarshal([]byte(o.out), &list) != nil {
		bad("templates can't be listed: %s%s", o.out, o.stderr)
	}
	if a.keeps && len(list) != 1 {
		bad("there are %d templates", len(list))
	}
	for _, t := range list {
		if o := c.try("fork", t.Name, "--eval", "x in (1, 2)", "--rm"); o.code != 0 || !strings.Contains(o.out, "True") {
			bad("template %s is %s (%s) and can't be forked: %s", t.Name, t.State, t.Cause, o.stderr)
		}
		if o := c.try("template", "rm", t.Name); o.code != 0 {
			bad("template %s can't be removed: %s", t.Name, o.stderr)
		}
	}
}
