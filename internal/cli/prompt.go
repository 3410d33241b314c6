package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"golang.org/x/term"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// prompt reads code at a terminal, evaluates it and prints its value, until the user ends it. A
// line with an open bracket or text continues until it is closed, one that ends in a colon until
// an empty line. Ctrl-C discards the input, or interrupts the evaluation.
func (a *app) prompt(ctx context.Context, sel string, req api.EvalRequest, save string) error {
	// From here on Ctrl-C interrupts the evaluation, not this program.
	ctx = context.WithoutCancel(ctx)
	c, err := a.client.Cell(ctx, sel)
	if err != nil {
		return err
	}
	if i := c.Interpreter; i != nil && i.Ended == "" && !req.Fresh {
		a.say("%s, %s; Ctrl-D leaves, the interpreter goes on", i.Version, plural(int(i.Evals), "evaluation"))
	} else {
		a.say("a new interpreter in cell %s; Ctrl-D leaves, the interpreter goes on", c.Name)
	}
	python := req.Kind == "" || req.Kind == cell.WarmPython
	if i := c.Interpreter; i != nil && req.Kind == "" {
		python = i.Kind != cell.WarmNode && i.Kind != cell.WarmJava
	}
	keys := &keyboard{in: a.stdin}
	t := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{keys, a.stdin}, "")
	var code []string
	for {
		if t.SetPrompt(">>> "); len(code) > 0 {
			t.SetPrompt("... ")
		}
		line, err := a.readLine(t)
		a.cursor.end() // the user's Enter has ended the line
		if keys.interrupted {
			keys.interrupted, code = false, nil
			a.say("KeyboardInterrupt")
			continue
		}
		if errors.Is(err, io.EOF) {
			fmt.Fprintln(a.stderr)
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read from the terminal: %w", err)
		}
		if code = append(code, line); !inputComplete(code, python) {
			continue
		}
		req.Code, code = strings.Join(code, "\n"), nil
		switch strings.TrimSpace(req.Code) {
		case "":
			continue
		case "exit", "quit", "exit()", "quit()": // typed by users to leave
			return nil
		}
		if err := a.evalLine(ctx, sel, req, save); err != nil {
			return err
		}
		req.Fresh = false
	}
}

// readLine reads with the terminal in raw mode, which ends with the line.
func (a *app) readLine(t *term.Terminal) (string, error) {
	fd := int(a.stdin.Fd())
	old, err := term.MakeRaw(fd)
	if err != nil {
		return "", err
	}
	defer term.Restore(fd, old)
	if w, h, err := term.GetSize(fd); err == nil && w > 0 {
		t.SetSize(w, h)
	}
	t.SetBracketedPasteMode(true)
	defer t.SetBracketedPasteMode(false)
	line, err := t.ReadLine()
	if errors.Is(err, term.ErrPasteIndicator) {
		err = nil
	}
	return line, err
}

// evalLine evaluates one input and prints errors of the code. It returns an error that ends the
// prompt.
func (a *app) evalLine(ctx context.Context, sel string, req api.EvalRequest, save string) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	_, ev, err := a.evaluate(ctx, sel, req)
	if e, ok := errors.AsType[*api.Error](err); ok {
		switch e.Kind {
		case "interrupted":
			a.say("KeyboardInterrupt")
			return nil
		case "conflict", "timeout", "invalid":
			a.say("pando: %s", printable(e.Message))
			if e.Hint != "" {
				a.say("hint: %s", printable(e.Hint))
			}
			return nil
		}
	}
	if err != nil {
		return err
	}
	return a.showEvaluated(sel, ev, save)
}

// keyboard reads keys. Ctrl-C discards the current line and is noted; complete lines before it
// and input after it are kept.
type keyboard struct {
	in          io.Reader
	interrupted bool

	rest   []byte // read, but not returned yet
	escape bool   // the returned bytes end within a key's sequence
}

func (k *keyboard) Read(b []byte) (int, error) {
	if len(b) < 2 {
		return 0, io.ErrShortBuffer
	}
	if len(k.rest) == 0 {
		buf := make([]byte, len(b))
		n, err := k.in.Read(buf)
		if k.rest = buf[:n]; n == 0 {
			return 0, err
		}
	}
	n := bytes.IndexByte(k.rest, keyInterrupt)
	if n == 0 {
		k.rest = k.rest[1:]
		k.interrupted = true
		end := "\r"
		if k.escape { // the byte would be part of that key
			end = "~\r"
		}
		k.escape = false
		return copy(b, end), nil
	}
	if n < 0 {
		n = len(k.rest)
	}
	n = copy(b, k.rest[:n])
	k.rest = k.rest[n:]
	if e := bytes.LastIndexByte(b[:n], keyEscape); e >= 0 {
		letter := bytes.IndexFunc(b[e+1:n], func(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '~' })
		k.escape = letter < 0
	}
	return n, nil
}

const (
	keyInterrupt = 0x03 // Ctrl-C
	keyEscape    = 0x1b
)

// inputComplete reports whether lines can be evaluated: no bracket or text is open and, in Python, an
// empty line ended a block.
func inputComplete(lines []string, python bool) bool {
	last := strings.TrimSpace(lines[len(lines)-1])
	if open(strings.Join(lines, "\n"), python) {
		return false
	}
	if !python {
		return true
	}
	if strings.HasSuffix(last, "\\") {
		return false
	}
	block := false
	for _, l := range lines {
		l = strings.TrimSpace(l)
		block = block || strings.HasSuffix(l, ":") || strings.HasPrefix(l, "@")
	}
	return !block || last == ""
}

// open reports whether brackets or a multi-line text are open in code of Python or of languages
// with C's syntax. Unknown syntax counts as closed.
func open(code string, python bool) bool {
	depth := 0
	for i := 0; i < len(code); i++ {
		c, rest := code[i], code[i:]
		switch {
		case c == '#' && python, !python && strings.HasPrefix(rest, "//"):
			n := strings.IndexByte(rest, '\n')
			if n < 0 {
				return depth > 0
			}
			i += n
			continue
		case !python && strings.HasPrefix(rest, "/*"):
			n := strings.Index(rest[2:], "*/")
			if n < 0 {
				return true
			}
			i += n + 3
			continue
		case !python && c == '`':
			for i++; i < len(code) && code[i] != '`'; i++ {
				if code[i] == '\\' {
					i++
				}
			}
			if i >= len(code) {
				return true
			}
			continue
		}
		switch c {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
		case '\'', '"':
			end := string(c)
			if strings.HasPrefix(code[i:], strings.Repeat(end, 3)) {
				end = strings.Repeat(end, 3)
			}
			i += len(end)
			for !strings.HasPrefix(code[min(i, len(code)):], end) {
				if i >= len(code) {
					return len(end) == 3 || depth > 0
				}
				if len(end) == 1 && code[i] == '\n' {
					break // an error, which the language explains better
				}
				if code[i] == '\\' {
					i++
				}
				i++
			}
			i += len(end) - 1
		}
	}
	return depth > 0
}
