package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/agent"
)

// setupLease is how long the cell of a login lives at most, also when this process is killed.
const setupLease = "30m"

// Screen follows what a program writes to a terminal.
type Screen interface {
	io.Writer
	Resize(rows, cols uint16)
	Lines() []string // the texts of the rows, without colours
}

// loginBySetup runs the login of an agent's program in a cell of its own, and stores the token that it
// shows at its end. It is a command and no run, so that nothing of it is recorded but that it was: its
// output is in the memory of the cell's keeper, and gone with the cell.
func (a *app) loginBySetup(ctx context.Context, known agent.Adapter) error {
	about := known.About()
	setup := about.Setup
	what := "log " + about.Title + " in"
	if setup == nil {
		return &api.Error{Kind: "unsupported", Message: "cannot " + what + " by its own login: it has none that gives a token to keep", Hint: "pando login " + about.Name + ", with a key"}
	}
	tty, rows, cols := a.terminal()
	if !tty {
		return usage("--setup-token needs a terminal: the login shows an address, and asks for a code")
	}
	scr, err := a.screen(rows, cols)
	if err != nil {
		return err
	}
	c, err := a.client.Create(ctx, api.CreateRequest{Allow: setup.Allow, Env: known.Env(agent.Start{}), Lease: api.LeaseRequest{For: setupLease, Then: api.LeaseRemove}, CallerEnv: callerEnv(), CallerDir: a.dir})
	if err != nil {
		return err
	}
	defer a.removeSetup(ctx, c.ID)
	if c.Backend == "none" {
		return &api.Error{Kind: "denied", Message: "cannot " + what + " on backend none: the login would run in your home", Hint: "allow an isolated backend, or use a key: pando login " + about.Name}
	}
	x, err := a.client.StartExec(ctx, c.ID, api.ExecRequest{Command: append([]string{about.Program}, setup.Args...), TTY: true, Rows: rows, Cols: cols, Attach: true, CallerEnv: termOnly()})
	if err != nil {
		return err
	}
	l, err := a.linkTo(ctx, "command", x.ID, client.AttachOptions{Input: true, Name: rand.Text(), Rows: rows, Cols: cols}, a.client.AttachExec)
	if err != nil {
		return err
	}
	w := &tokenWatch{setup: *setup, scr: scr}
	l.through = func(to io.Writer) io.Writer { w.to = to; return w }
	w.size = func() (uint16, uint16) { _, r, c := a.terminal(); return r, c }
	f, err := a.stream(l, true, a.json)
	if err != nil {
		return err
	}
	if x, err = client.DecodeResult[api.Exec](f); err != nil {
		return err
	}
	if w.token == "" {
		why := "it ended without a token"
		switch {
		case w.seen:
			why = "its token was not all on the screen"
		case x.ExitCode != nil && *x.ExitCode != 0:
			why = fmt.Sprintf("it ended with exit code %d", *x.ExitCode)
		}
		return &api.Error{Kind: "conflict", Message: fmt.Sprintf("cannot %s by %s %s: %s", what, about.Program, strings.Join(setup.Args, " "), why), Hint: "try it again in a larger window, or run it yourself and paste the token: pando login " + about.Name}
	}
	stored, err := a.client.AddCredential(ctx, api.CredentialRequest{Name: setup.Credential, Secret: w.token, Replace: true})
	if err != nil {
		return err
	}
	return a.loggedIn(ctx, about, stored)
}

// removeSetup removes the cell of a login, with what its program wrote and showed.
func (a *app) removeSetup(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if _, err := a.client.Remove(ctx, id, false); err != nil {
		a.say("pando: warning: the cell %s of the login is still there, and its keeper has what it showed: %v; it is removed after %s: pando rm %s", id, err, setupLease, id)
	}
}

// tokenWatch passes on what a program shows until a token is on its screen, and nothing after that: the
// token would be in the scrollback of the user's terminal. It looks at the screen, since programs wrap
// a token, and draw only what is not there yet. Not safe for concurrent use.
type tokenWatch struct {
	setup agent.Setup
	to    io.Writer
	size  func() (rows, cols uint16) // nil: it stays as it was
	scr   Screen
	seen  bool   // a token begins on the screen
	token string // "" while none is whole
}

// Write implements io.Writer.
func (w *tokenWatch) Write(b []byte) (int, error) {
	if w.size != nil {
		if rows, cols := w.size(); rows > 0 {
			w.scr.Resize(rows, cols)
		}
	}
	for rest := b; len(rest) > 0; { // what is on the screen only for a moment is seen, too
		n := min(len(rest), 256)
		w.scr.Write(rest[:n])
		rest = rest[n:]
		token, seen := tokenOn(w.scr.Lines(), w.setup.Begins)
		w.seen = w.seen || seen
		if len(token) >= w.setup.Least { // the latest: while it is drawn, old rows may be below it
			w.token = token
		}
	}
	if w.seen {
		return len(b), nil
	}
	return w.to.Write(b)
}

// tokenOn finds a token on a screen, and reports whether one begins there. One that is wrapped goes on
// in the next row, at the column at which it begins, where that has nothing but a part of it.
func tokenOn(lines []string, begins string) (token string, seen bool) {
	for i, line := range lines {
		at := strings.Index(line, begins)
		if at < 0 {
			continue
		}
		part := line[at:]
		n := tokenLength(part)
		token = part[:n]
		indent := len([]rune(line[:at]))
		for _, next := range lines[i+1:] {
			if strings.TrimSpace(part[n:]) != "" { // something follows it in its row
				break
			}
			part = strings.TrimLeft(next, " ")
			if len(next)-len(part) != indent {
				break
			}
			if n = tokenLength(part); n == 0 || strings.TrimSpace(part[n:]) != "" {
				break
			}
			token += part[:n]
		}
		return token, true
	}
	return "", false
}

// tokenLength is how much of the beginning of a text can be of a token.
func tokenLength(s string) int {
	i := strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	})
	if i < 0 {
		return len(s)
	}
	return i
}
