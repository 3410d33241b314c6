package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/creack/pty"
)

// program is another program, found or not.
type program struct {
	path    string
	version string
	why     string // why it can't be used; "" if it can
}

// find looks for a program and asks it for its version.
func (l *lab) find(ctx context.Context, name string) *program {
	if p := l.programs[name]; p != nil {
		return p
	}
	p := &program{why: "not installed"}
	l.programs[name] = p
	for _, dir := range filepath.SplitList(l.path) {
		at := filepath.Join(dir, name)
		if st, err := os.Stat(at); err == nil && !st.IsDir() && st.Mode()&0o111 != 0 {
			p.path, p.why = at, ""
			break
		}
	}
	if p.path == "" {
		return p
	}
	ask := "--version"
	switch name {
	case "go":
		ask = "version"
	case "ssh":
		ask = "-V"
	}
	out, err := command{args: []string{p.path, ask}}.run(ctx)
	if err != nil {
		p.why = firstLine("installed, but does not even tell its version: " + err.Error())
		return p
	}
	p.version = firstLine(string(out))
	return p
}

// command is a program that is run and waited for. Its input is empty and its
// output is read: what is timed is the whole of that.
type command struct {
	dir   string
	env   []string // nil: ours
	args  []string
	files []*os.File   // from descriptor 3 on
	leave string       // a file for output of what it leaves running, which would hold a pipe open
	on    *privateHost // nil: this host as it is
}

// run returns what it wrote to standard output. That it failed is an error
// with what it wrote to standard error.
func (c command) run(ctx context.Context) ([]byte, error) {
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Dir, cmd.Env, cmd.ExtraFiles = c.dir, c.env, c.files
	// Pipes, never /dev/null: crun gives its standard streams to the
	// container's root, and /dev/null is the host's.
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(""), &out, &errs
	cmd.WaitDelay = 5 * time.Second
	var err error
	if c.leave != "" {
		f, err := os.OpenFile(c.leave, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		cmd.Stdin, cmd.Stdout, cmd.Stderr = f, f, f
	}
	if c.on != nil {
		err = c.on.do(cmd.Start)
	} else {
		err = cmd.Start()
	}
	if err == nil {
		err = cmd.Wait()
	}
	if err == nil {
		return out.Bytes(), nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if b, rerr := os.ReadFile(c.leave); rerr == nil {
		errs.Write(b)
	}
	said := strings.TrimSpace(errs.String())
	if said == "" {
		said = strings.TrimSpace(out.String())
	}
	if e, ok := errors.AsType[*exec.ExitError](err); ok && said != "" {
		return out.Bytes(), fmt.Errorf("%s: %s: %s", filepath.Base(c.args[0]), e, said)
	}
	return out.Bytes(), fmt.Errorf("%s: %w", filepath.Base(c.args[0]), err)
}

// begun is a command that goes on.
type begun struct {
	over <-chan struct{}      // closed when it has ended, or closed its output
	end  func() (said string) // ends it and what it has started, and returns the end of what it wrote
}

// begin starts a command, at a terminal of its own or without one. wrote gets what it writes.
func (c command) begin(terminal bool, wrote func([]byte)) (*begun, error) {
	cmd := exec.Command(c.args[0], c.args[1:]...)
	cmd.Dir, cmd.Env = c.dir, c.env
	var from *os.File
	if terminal {
		f, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 120})
		if err != nil {
			return nil, err
		}
		from = f
	} else {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(""), w, w
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		err = cmd.Start()
		w.Close()
		if err != nil {
			r.Close()
			return nil, err
		}
		from = r
	}
	const kept = 4 << 10
	over := make(chan struct{})
	var said []byte
	go func() {
		defer close(over)
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			wrote(buf[:n])
			said = append(said, buf[:n]...)
			said = said[max(0, len(said)-kept):]
			if err != nil {
				return
			}
		}
	}()
	return &begun{over: over, end: func() string {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
		select {
		case <-over:
		case <-time.After(time.Second): // what it left behind has its output open
			from.Close()
			return ""
		}
		from.Close()
		return strings.TrimSpace(string(said))
	}}, nil
}

// all runs commands one after the other.
func all(ctx context.Context, list ...command) error {
	for _, c := range list {
		if _, err := c.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// words is the command as one would type it.
func (c command) words() string {
	words := make([]string, len(c.args))
	for i, a := range c.args {
		if i == 0 {
			a = filepath.Base(a)
		}
		if a == "" || strings.ContainsAny(a, " \t\n'\"$\\|&;<>()*?") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words[i] = a
	}
	return strings.Join(words, " ")
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if len(line) > 300 {
		line = line[:300] + "…"
	}
	return line
}
