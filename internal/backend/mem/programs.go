package mem

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// proc is the environment of a program: a task and its streams.
type proc struct {
	task           *task
	ctx            context.Context // ends with the task
	shell          *task           // its parent shell; nil: none
	args, env      []string
	dir            string
	stdin          io.Reader
	stdout, stderr io.Writer
}

// program is the main function of a program.
type program func(p *proc) (code int)

// programs returns all programs by name.
func programs() map[string]program {
	return map[string]program{
		"sh": shell, "true": exits(0), "false": exits(1), "sleep": sleep, "env": env, "setsid": setsid, "kill": kill, "wait": wait,
		"cat": cat, "head": head, "wc": wc, "grep": grep, "tr": tr, "gzip": pack, "echo": echo,
		"rm": rm, "mkdir": mkdir, "mv": mv, "cp": cp, "ln": ln, "chmod": chmod, "touch": touch,
	}
}

// fails prints an error and returns the exit code.
func (p *proc) fails(code int, format string, args ...any) int {
	fmt.Fprintf(p.stderr, "%s: %s\n", p.args[0], fmt.Sprintf(format, args...))
	return code
}

// failed returns the exit code for an error.
func (p *proc) failed(err error) int {
	switch {
	case err == nil:
		return 0
	case p.ctx.Err() != nil:
		return 1
	}
	return p.fails(1, "%v", err)
}

// path resolves a file name in an argument.
func (p *proc) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(p.dir, name)
}

// act makes a change while the cell is not frozen.
func (p *proc) act(f func() error) (err error) {
	if stopped := p.task.room.act(p.ctx, func() { err = f() }); stopped != nil {
		return stopped
	}
	return err
}

// flags parses single-letter options at the start of the arguments.
func (p *proc) flags() (flags string, rest []string) {
	rest = p.args[1:]
	for len(rest) > 0 && len(rest[0]) > 1 && rest[0][0] == '-' {
		flags, rest = flags+rest[0][1:], rest[1:]
	}
	return flags, rest
}

// open opens a file for reading, or a task's file in /proc.
func (p *proc) open(name string) (io.ReadCloser, error) {
	if rest, ok := strings.CutPrefix(name, "/proc/"); ok {
		number, what, _ := strings.Cut(rest, "/")
		if n, err := strconv.Atoi(number); err == nil && what == "cmdline" {
			if args, ok := p.task.room.host.numbered()[n]; ok {
				return io.NopCloser(strings.NewReader(strings.Join(args, "\x00") + "\x00")), nil
			}
		}
	}
	return os.Open(p.path(name))
}

// Read reads the program's input until its task ends.
func (p *proc) Read(b []byte) (int, error) {
	if in, ok := p.stdin.(*input); ok {
		return in.read(p.ctx, b)
	}
	if err := p.ctx.Err(); err != nil {
		return 0, err
	}
	return p.stdin.Read(b)
}

// inputs calls f with each named file, or with the program's input.
func (p *proc) inputs(names []string, f func(r io.Reader) error) (code int) {
	if len(names) == 0 {
		return p.failed(f(p))
	}
	for _, name := range names {
		r, err := p.open(name)
		if err == nil {
			err = f(r)
			r.Close()
		}
		code = max(code, p.failed(err))
	}
	return code
}

func exits(code int) program { return func(*proc) int { return code } }

func sleep(p *proc) int {
	if len(p.args) != 2 {
		return p.fails(1, "how long?")
	}
	s, err := strconv.ParseFloat(p.args[1], 64)
	if err != nil {
		return p.failed(err)
	}
	t := time.NewTimer(time.Duration(s * float64(time.Second)))
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.ctx.Done():
	}
	return p.failed(p.act(func() error { return nil }))
}

func env(p *proc) int {
	if len(p.args) > 1 {
		return p.fails(125, "a fake's env takes no arguments")
	}
	for _, kv := range p.env {
		fmt.Fprintln(p.stdout, kv)
	}
	return 0
}

func echo(p *proc) int {
	fmt.Fprintln(p.stdout, strings.Join(p.args[1:], " "))
	return 0
}

// setsid runs a program. Tasks have no sessions.
func setsid(p *proc) int {
	if len(p.args) < 2 {
		return p.fails(1, "which program?")
	}
	main := programs()[path.Base(p.args[1])]
	if main == nil {
		return p.fails(127, "%s: a fake has no such program", p.args[1])
	}
	q := *p
	q.args = p.args[1:]
	p.task.room.host.mu.Lock()
	p.task.args = q.args
	p.task.room.host.mu.Unlock()
	return main(&q)
}

// kill replaces the PID of this process by that of the parent shell, because the interpreter
// takes it for $$.
func kill(p *proc) int {
	sig, rest := "SIGTERM", p.args[1:]
	if len(rest) > 1 && rest[0] == "-s" {
		sig, rest = signalName(rest[1]), rest[2:]
	} else if len(rest) > 0 && strings.HasPrefix(rest[0], "-") {
		switch sig = rest[0][1:]; sig {
		case "0":
		case "9":
			sig = "SIGKILL"
		case "15":
			sig = "SIGTERM"
		default:
			sig = signalName(sig)
		}
		rest = rest[1:]
	}
	if sig == "" || len(rest) == 0 {
		return p.fails(2, "which signal, to which process?")
	}
	for _, a := range rest {
		n, err := strconv.Atoi(a)
		t := p.task.room.host.find(n)
		if n == os.Getpid() {
			t = p.shell
		}
		if err != nil || t == nil {
			return p.fails(1, "%s: no such task", a)
		}
		if sig != "0" {
			t.signal(sig)
		}
	}
	return 0
}

// wait waits for the shell's background tasks, or for a signal that the shell handles.
func wait(p *proc) int {
	if len(p.args) > 1 {
		return p.fails(2, "a fake waits for all")
	}
	h := p.task.room.host
	h.mu.Lock()
	children, stopped := p.shell.children, p.shell.stopped
	h.mu.Unlock()
	for _, t := range children {
		select {
		case <-t.done:
		case <-stopped:
			return 128
		case <-p.ctx.Done():
			return 1
		}
	}
	return 0
}

func cat(p *proc) int {
	return p.inputs(p.args[1:], func(r io.Reader) error { _, err := io.Copy(p.stdout, r); return err })
}

func head(p *proc) int {
	if len(p.args) < 3 || p.args[1] != "-c" {
		return p.fails(1, "a fake's head wants -c NUMBER")
	}
	n, err := strconv.ParseInt(p.args[2], 10, 64)
	if err != nil {
		return p.failed(err)
	}
	return p.inputs(p.args[3:], func(r io.Reader) error { _, err := io.Copy(p.stdout, io.LimitReader(r, n)); return err })
}

func wc(p *proc) int {
	flags, names := p.flags()
	return p.inputs(names, func(r io.Reader) error {
		b, err := io.ReadAll(r)
		switch flags {
		case "l":
			fmt.Fprintln(p.stdout, bytes.Count(b, []byte("\n")))
		case "c":
			fmt.Fprintln(p.stdout, len(b))
		default:
			return errors.Join(err, errors.New("a fake's wc wants -l or -c"))
		}
		return err
	})
}

func grep(p *proc) int {
	flags, rest := p.flags()
	if flags != "q" && flags != "" || len(rest) == 0 {
		return p.fails(2, "a fake's grep is grep [-q] PATTERN [FILE...]")
	}
	re, err := regexp.Compile(rest[0])
	if err != nil {
		return p.fails(2, "%v", err)
	}
	found := false
	code := p.inputs(rest[1:], func(r io.Reader) error {
		b, err := io.ReadAll(r)
		for line := range strings.Lines(string(b)) {
			if re.MatchString(strings.TrimSuffix(line, "\n")) {
				if found = true; flags == "" {
					io.WriteString(p.stdout, line)
				}
			}
		}
		return err
	})
	switch {
	case code != 0:
		return 2
	case !found:
		return 1
	}
	return 0
}

func tr(p *proc) int {
	unescaped := strings.NewReplacer(`\0`, "\x00", `\n`, "\n")
	if len(p.args) != 3 {
		return p.fails(1, "a fake's tr wants two characters")
	}
	from, to := unescaped.Replace(p.args[1]), unescaped.Replace(p.args[2])
	if len(from) != 1 || len(to) != 1 {
		return p.fails(1, "a fake's tr wants two characters")
	}
	return p.inputs(nil, func(r io.Reader) error {
		b, err := io.ReadAll(r)
		p.stdout.Write(bytes.ReplaceAll(b, []byte(from), []byte(to)))
		return err
	})
}

// pack is gzip for its standard input.
func pack(p *proc) int {
	return p.inputs(nil, func(r io.Reader) error {
		z := gzip.NewWriter(p.stdout)
		_, err := io.Copy(z, r)
		return errors.Join(err, z.Close())
	})
}

// each calls f for each named file.
func (p *proc) each(names []string, f func(name string) error) (code int) {
	for _, name := range names {
		code = max(code, p.failed(p.act(func() error { return f(p.path(name)) })))
	}
	return code
}

func rm(p *proc) int {
	flags, names := p.flags()
	return p.each(names, func(name string) error {
		remove := os.Remove
		if st, err := os.Lstat(name); err == nil && st.IsDir() {
			if !strings.Contains(flags, "r") {
				return fmt.Errorf("%s is a directory", name)
			}
			remove = os.RemoveAll
		}
		if err := remove(name); !strings.Contains(flags, "f") || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

func mkdir(p *proc) int {
	flags, names := p.flags()
	return p.each(names, func(name string) error {
		if strings.Contains(flags, "p") {
			return os.MkdirAll(name, 0o777)
		}
		return os.Mkdir(name, 0o777)
	})
}

// into returns the destination of a move or copy.
func into(from, to string) string {
	if st, err := os.Stat(to); err == nil && st.IsDir() {
		return filepath.Join(to, filepath.Base(from))
	}
	return to
}

// pair calls f with the two files of a program.
func (p *proc) pair(f func(from, to string) error) int {
	if len(p.args) != 3 {
		return p.fails(1, "a fake's %s takes two files", p.args[0])
	}
	return p.failed(p.act(func() error { return f(p.path(p.args[1]), into(p.args[1], p.path(p.args[2]))) }))
}

func mv(p *proc) int { return p.pair(os.Rename) }

func cp(p *proc) int {
	return p.pair(func(from, to string) error {
		b, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		defer p.task.room.wrote(int64(len(b)))
		return os.WriteFile(to, b, 0o666)
	})
}

func ln(p *proc) int {
	flags, names := p.flags()
	if flags != "" && flags != "s" || len(names) != 2 {
		return p.fails(1, "a fake's ln is ln [-s] TO NAME")
	}
	return p.failed(p.act(func() error {
		if flags == "" {
			return os.Link(p.path(names[0]), p.path(names[1]))
		}
		return os.Symlink(names[0], p.path(names[1]))
	}))
}

func chmod(p *proc) int {
	if len(p.args) < 3 {
		return p.fails(1, "a fake's chmod is chmod MODE FILE...")
	}
	mode, err := strconv.ParseUint(p.args[1], 8, 12)
	if err != nil {
		return p.failed(err)
	}
	return p.each(p.args[2:], func(name string) error { return os.Chmod(name, fs.FileMode(mode&0o777)) })
}

func touch(p *proc) int {
	return p.each(p.args[1:], func(name string) error {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o666)
		if err != nil {
			return err
		}
		now := time.Now()
		return errors.Join(f.Close(), os.Chtimes(name, now, now))
	})
}
