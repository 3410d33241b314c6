// Package notice tells a person, or a program of theirs, that a run has ended or waits for an answer: on the
// desktop, with a request to a web address, or with a command of the host.
//
// It promises that a way which Check accepted is tried once, for no longer than a limit, and that text from
// a cell is data to it: never a part of a command, an option or markup. It leaves to its callers which of them may
// name a way (a command runs on the host, as the daemon's user), and what to do with an error.
package notice

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

// Desktop is the way over the desktop's notifications; a way over the web is its address.
const Desktop = "desktop"

// command begins a way by a command of the shell.
const command = "command:"

// Limits of one attempt.
const (
	webLimit     = 10 * time.Second
	commandLimit = 30 * time.Second
)

// notifier shows notices on desktops (freedesktop.org, Desktop Notifications); it is a program of libnotify.
const notifier = "notify-send"

// Check rejects what is no way.
func Check(way string) error {
	if way == Desktop {
		return nil
	}
	if text, ok := strings.CutPrefix(way, command); ok && strings.TrimSpace(text) != "" && !strings.Contains(text, "\x00") {
		return nil
	}
	if !policy.IsAddress(way) {
		return cell.Errorf(cell.Invalid, "notice.Check", "give desktop, https://HOST/PATH or command:COMMAND", "cannot give notice by %q", cell.Clip(way))
	}
	return nil
}

// Works rejects what Check does, and what is not there on this host.
func Works(way string) error {
	if err := Check(way); err != nil || way != Desktop {
		return err
	}
	if _, err := exec.LookPath(notifier); err != nil {
		return cell.Errorf(cell.Unsupported, "notice.Works", "install it (Debian: libnotify-bin), or give a web address or command:COMMAND",
			"cannot give notice on the desktop: there is no %s on the daemon's PATH", notifier)
	}
	return nil
}

// Send gives a notice by a way.
func Send(ctx context.Context, way string, n api.Notice) error {
	n.Title, n.Text, n.Next = line(n.Title), line(n.Text), line(n.Next)
	if text, ok := strings.CutPrefix(way, command); ok {
		return run(ctx, n, "/bin/sh", "-c", text)
	}
	if way == Desktop {
		// The body is markup, of which no tag is meant.
		body := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(n.Text)
		return run(ctx, n, notifier, "--app-name=pando", "--", n.Title, body+"\n"+n.Next)
	}
	return Post(ctx, way, n)
}

// line is text without the characters that control a display.
func line(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}

// Post sends a value as JSON to a web address.
func Post(ctx context.Context, to string, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, webLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		if u := (*url.Error)(nil); errors.As(err, &u) {
			err = u.Err // without the address, of which a part may be a secret
		}
		return err
	}
	resp.Body.Close()
	if resp.StatusCode >= 300 {
		return fmt.Errorf("it answered %s", resp.Status)
	}
	return nil
}

// run executes a program of the host, in its user's home. It has the notice as JSON on its standard input, and parts of it in
// variables.
func run(ctx context.Context, n api.Notice, name string, args ...string) error {
	body, err := json.Marshal(n)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Stdin = bytes.NewReader(append(body, '\n'))
	c.Env, c.Dir = account()
	c.Env = append(c.Env, "PANDO_WHAT="+n.What, "PANDO_RUN="+n.Run, "PANDO_CELL="+n.Cell, "PANDO_CELL_NAME="+n.CellName, "PANDO_SOURCE="+n.Source,
		"PANDO_VERDICT="+n.Verdict, "PANDO_TITLE="+n.Title, "PANDO_TEXT="+n.Text, "PANDO_NEXT="+n.Next)
	var said limited
	c.Stdout, c.Stderr = &said, &said
	group(c)
	c.WaitDelay = time.Second
	err = c.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil // it ended, and something that it started has its output
	}
	if ctx.Err() != nil && err != nil {
		return fmt.Errorf("it did not end in %s", commandLimit)
	}
	if err != nil && len(said) > 0 {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(said))
	}
	return err
}

// account is the environment and the directory of a command of the daemon's user, as at a login: the daemon has none of its
// caller's.
func account() (env []string, home string) {
	home = "/"
	runtime := "/run/user/" + strconv.Itoa(os.Getuid())
	env = []string{"PATH=" + cmp.Or(os.Getenv("PATH"), "/usr/local/bin:/usr/bin:/bin"), "XDG_RUNTIME_DIR=" + runtime, "DBUS_SESSION_BUS_ADDRESS=unix:path=" + runtime + "/bus"}
	if u, err := user.Current(); err == nil {
		home = u.HomeDir
		env = append(env, "HOME="+home, "USER="+u.Username, "LOGNAME="+u.Username)
	}
	return env, home
}

// limited is the beginning of what a program wrote.
type limited []byte

func (l *limited) Write(b []byte) (int, error) {
	*l = append(*l, b[:min(len(b), 300-len(*l))]...)
	return len(b), nil
}
