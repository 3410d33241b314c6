package mem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// spawn is the program of a background statement. Its task exists before the next statement
// runs, as after a fork.
const spawn = "/bin/-spawn"

// shell is sh -c SCRIPT [NAME ARG...].
func shell(p *proc) int {
	if len(p.args) < 3 || p.args[1] != "-c" {
		return p.fails(2, "a fake's shell runs sh -c SCRIPT")
	}
	file, err := parse(p.args[2])
	if err != nil {
		return p.fails(2, "%v", err)
	}
	var params []string
	if len(p.args) > 4 {
		params = p.args[4:]
	}
	return p.interpret(file, append([]string{"--"}, params...)...)
}

// parse parses a script, and replaces each background statement by a call of spawn.
func parse(script string) (*syntax.File, error) {
	file, err := syntax.NewParser(syntax.Variant(syntax.LangPOSIX)).Parse(strings.NewReader(script), "sh")
	if err != nil {
		return nil, err
	}
	syntax.Walk(file, func(node syntax.Node) bool {
		st, ok := node.(*syntax.Stmt)
		if !ok || !st.Background {
			return true
		}
		st.Background, st.Semicolon = false, syntax.Pos{}
		var text strings.Builder
		if err = errors.Join(err, syntax.NewPrinter().Print(&text, st)); err != nil {
			return false
		}
		kind := "shell"
		if c, ok := st.Cmd.(*syntax.CallExpr); ok && len(c.Args) > 0 && !interp.IsBuiltin(c.Args[0].Lit()) {
			kind = "program" // the task becomes it
		}
		st.Redirs, st.Negated = nil, false
		st.Cmd = &syntax.CallExpr{Args: []*syntax.Word{literal(spawn), literal(kind), literal(text.String())}}
		return false
	})
	return file, err
}

func literal(s string) *syntax.Word {
	return &syntax.Word{Parts: []syntax.WordPart{&syntax.SglQuoted{Value: s}}}
}

// interpret runs a script to its end as the task of p.
func (p *proc) interpret(file *syntax.File, params ...string) int {
	var in io.Reader
	if f, ok := p.stdin.(*os.File); ok {
		in = f
	}
	r, err := interp.New(interp.Dir(p.dir), interp.Env(expand.ListEnviron(p.env...)), interp.StdIO(in, p.stdout, p.stderr), interp.Params(params...),
		interp.CallHandler(p.call), interp.ExecHandlers(func(interp.ExecHandlerFunc) interp.ExecHandlerFunc { return p.exec }),
		interp.OpenHandler(open), interp.ReadDirHandler2(readDir))
	if err != nil {
		return p.fails(2, "%v", err)
	}
	code := codeOf(r.Run(p.ctx, file))
	for do := p.task.handles(); do != "" && p.ctx.Err() == nil; do = p.task.handles() {
		file, err := parse(do)
		if err != nil {
			return p.fails(2, "%v", err)
		}
		if at := codeOf(r.Run(p.ctx, file)); r.Exited() {
			code = at
		}
	}
	return code
}

func codeOf(err error) int {
	var code interp.ExitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	return 1
}

// call runs before each simple command. It waits while the cell is frozen, handles signals, and
// implements what the interpreter lacks.
func (p *proc) call(ctx context.Context, args []string) ([]string, error) {
	if err := p.task.room.act(ctx, func() {}); err != nil {
		return nil, err
	}
	if do := p.task.handles(); do != "" {
		for i, a := range args {
			q, err := syntax.Quote(a, syntax.LangPOSIX)
			if err != nil {
				return nil, err
			}
			args[i] = q
		}
		return []string{"eval", do + "\n" + strings.Join(args, " ")}, nil
	}
	switch args[0] {
	case "trap":
		return p.trap(args), nil
	case "kill", "wait":
		args[0] = "/bin/" + args[0]
	case "exec":
		if len(args) > 1 {
			p.task.becomes()
		}
	}
	return args, nil
}

// trap handles the signals that the interpreter does not know.
func (p *proc) trap(args []string) []string {
	rest := []string{"trap"}
	for i, a := range args[1:] {
		if sig := signalName(a); sig != "" && i > 0 {
			p.task.trap(sig, args[1])
		} else {
			rest = append(rest, a)
		}
	}
	if len(rest) == 2 {
		return []string{"true"}
	}
	return rest
}

// becomes makes the next program run in the shell's own task.
func (t *task) becomes() {
	t.room.host.mu.Lock()
	defer t.room.host.mu.Unlock()
	t.next = true
}

// exec runs a program in a new task, or in that of a shell that ends with it.
func (p *proc) exec(ctx context.Context, args []string) error {
	hc, h := interp.HandlerCtx(ctx), p.task.room.host
	if args[0] == spawn {
		p.spawn(hc, args)
		return nil
	}
	main := programs()[path.Base(args[0])]
	if main == nil {
		fmt.Fprintf(hc.Stderr, "%s: a fake has no such program\n", args[0])
		return interp.ExitStatus(127)
	}
	h.mu.Lock()
	t := p.task
	if t.next {
		t.next, t.args = false, args
	} else {
		t = t.room.newTask(t.of, t, args)
	}
	h.mu.Unlock()
	q := &proc{task: t, ctx: t.ctx, shell: p.task, args: args, env: exported(hc.Env), dir: hc.Dir, stdin: p.stdin, stdout: hc.Stdout, stderr: hc.Stderr}
	if hc.Stdin != nil {
		q.stdin = hc.Stdin
	}
	code := main(q)
	if t != p.task {
		t.end(code)
		code = t.code
	}
	if code == 0 {
		return nil
	}
	return interp.ExitStatus(code)
}

// spawn starts a task for a background statement.
func (p *proc) spawn(hc interp.HandlerContext, args []string) {
	h := p.task.room.host
	file, err := parse(args[2])
	if err != nil {
		p.fails(2, "%v", err)
		return
	}
	h.mu.Lock()
	t := p.task.room.newTask(p.task.of, p.task, p.task.args)
	t.next = args[1] == "program"
	p.task.children = append(p.task.children, t)
	h.mu.Unlock()
	q := &proc{task: t, ctx: t.ctx, shell: t, args: p.task.args, env: variables(hc.Env), dir: hc.Dir, stdin: strings.NewReader(""), stdout: hc.Stdout, stderr: hc.Stderr}
	h.work.Go(func() { t.end(q.interpret(file)) })
}

// exported returns the shell variables in a program's environment.
func exported(env expand.Environ) (list []string) {
	for name, v := range env.Each {
		if v.Exported && v.IsSet() {
			list = append(list, name+"="+v.String())
		}
	}
	return list
}

// variables returns the variables that a background shell inherits.
func variables(env expand.Environ) (list []string) {
	for name, v := range env.Each {
		if v.IsSet() && !v.ReadOnly {
			list = append(list, name+"="+v.String())
		}
	}
	return list
}

// open opens the file of a redirection.
func open(ctx context.Context, name string, flag int, perm fs.FileMode) (out io.ReadWriteCloser, err error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(interp.HandlerCtx(ctx).Dir, name)
	}
	t := taskOf(ctx)
	var f *os.File
	if stopped := t.room.act(ctx, func() { f, err = os.OpenFile(name, flag, perm) }); stopped != nil {
		return nil, stopped
	}
	if err != nil || flag&(os.O_WRONLY|os.O_RDWR) == 0 {
		return f, err // the interpreter requires a readable file
	}
	return &outFile{f, ctx, t}, nil
}

// outFile is a file that a task writes.
type outFile struct {
	f   *os.File
	ctx context.Context
	t   *task
}

func (o *outFile) Read(b []byte) (int, error) { return o.f.Read(b) }

func (o *outFile) Close() error { return o.f.Close() }

func (o *outFile) Write(b []byte) (n int, err error) {
	if stopped := o.t.room.act(o.ctx, func() { n, err = o.f.Write(b) }); stopped != nil {
		return 0, stopped
	}
	o.t.room.wrote(int64(n))
	return n, err
}

// readDir lists a directory for a pattern. In /proc it lists the tasks.
func readDir(ctx context.Context, name string) ([]fs.DirEntry, error) {
	list, err := os.ReadDir(name)
	for n := range taskOf(ctx).room.host.numbered() {
		switch dir := fmt.Sprintf("/proc/%d", n); filepath.Clean(name) {
		case "/proc":
			list = append(list, taskDir(filepath.Base(dir)))
		case dir + "/cmdline":
			return nil, unix.ENOTDIR
		}
	}
	return list, err
}

// taskDir is a task's directory in /proc.
type taskDir string

func (d taskDir) Name() string               { return string(d) }
func (d taskDir) IsDir() bool                { return true }
func (d taskDir) Type() fs.FileMode          { return fs.ModeDir }
func (d taskDir) Info() (fs.FileInfo, error) { return nil, unix.ENOSYS }
