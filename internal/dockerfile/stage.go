package dockerfile

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"github.com/pando-dev/pando/internal/oci"
)

// settings are what an image says about commands in it, and what a stage adds to that.
type settings struct {
	Env     []string // NAME=value, in the order in which they were set
	User    string
	Workdir string

	shell   []string
	service oci.Service
	// commanded says that the stage itself has a CMD.
	commanded bool
	triggers  []string          // of ONBUILD
	args      map[string]string // of ARG
}

// defaultShell executes commands that are written as text.
var defaultShell = []string{"/bin/sh", "-c"}

// A Run is a RUN, to be executed in a cell.
type Run struct {
	Line    int
	Text    string   // as it is written
	Command []string // program and arguments
	Env     []string // NAME=value: of the image, and of ARG
	Workdir string
	Offline bool // without a network, whatever the policy allows
}

// A copying is a COPY or an ADD.
type copying struct {
	line    int
	text    string
	on      int    // the stage it copies from; -1: the context, or image
	image   string // or an image
	sources []string
	inline  []inline
	dest    string // absolute; ends with "/" if it is a folder
	chown   string
	chmod   string
	exclude []string
	unpack  bool // archives
}

// inline is a file with its content in the Dockerfile.
type inline struct{ name, text string }

// do is what an instruction asks for beside changed settings: neither, or one.
type do struct {
	run  *Run
	copy *copying
	dir  string // a folder to make
}

// next carries out what an instruction does to the settings, and returns what else it asks for.
func (f *File) next(c instructions.Command, s *settings) (out do, err error) {
	line := lineOf(c)
	vars := s.vars()
	expand := func(word string) (string, error) { return f.expand(word, vars) }
	if e, ok := c.(instructions.SupportsSingleWordExpansion); ok {
		if _, isArg := c.(*instructions.ArgCommand); !isArg {
			if err := e.Expand(expand); err != nil {
				return out, invalid(line, err)
			}
		}
	}
	switch c := c.(type) {
	case *instructions.EnvCommand:
		if len(c.Env) > maxVariables {
			return out, invalid(line, fmt.Errorf("it has more than %d variables", maxVariables))
		}
		for _, kv := range c.Env {
			s.set(kv.Key, kv.Value)
		}
		err = bounded(s.vars())
	case *instructions.ArgCommand:
		if err := f.arg(s.args, vars, c, f.meta); err != nil {
			return out, invalid(line, err)
		}
	case *instructions.WorkdirCommand:
		s.Workdir = within(s.Workdir, c.Path)
		out.dir = s.Workdir
	case *instructions.UserCommand:
		s.User = c.User
	case *instructions.ShellCommand:
		s.shell = slices.Clone(c.Shell)
	case *instructions.EntrypointCommand:
		s.service.Entrypoint = s.program(c.CmdLine, c.PrependShell)
		if !s.commanded { // the command of the base is for its entrypoint
			s.service.Command = nil
		}
	case *instructions.CmdCommand:
		s.service.Command, s.commanded = s.program(c.CmdLine, c.PrependShell), true
	case *instructions.ExposeCommand:
		for _, port := range c.Ports {
			s.service.AddPort(port)
		}
	case *instructions.VolumeCommand:
		for _, dir := range c.Volumes {
			s.service.AddVolume(within(s.Workdir, dir))
		}
	case *instructions.StopSignalCommand:
		s.service.StopSignal = c.Signal
	case *instructions.HealthCheckCommand:
		s.service.SetReady(c.Health.Test)
	case *instructions.OnbuildCommand:
		s.triggers = append(slices.Clone(s.triggers), c.Expression)
	case *instructions.RunCommand:
		out.run, err = s.command(c)
	case *instructions.CopyCommand:
		on, image := -1, c.From
		if n, ok := f.from[c]; ok {
			on, image = n, ""
		}
		out.copy = &copying{line: line, text: textOf(c), on: on, image: image, chown: c.Chown, chmod: c.Chmod, exclude: c.ExcludePatterns}
		err = f.sources(out.copy, &c.SourcesAndDest, s, vars)
	case *instructions.AddCommand:
		out.copy = &copying{line: line, text: textOf(c), on: -1, chown: c.Chown, chmod: c.Chmod, exclude: c.ExcludePatterns, unpack: c.Unpack == nil || *c.Unpack}
		err = f.sources(out.copy, &c.SourcesAndDest, s, vars)
	}
	if err != nil {
		return out, invalid(line, err)
	}
	return out, nil
}

// program is the command that an instruction names: as it is, or as a text for the shell.
func (s *settings) program(args []string, text bool) []string {
	if !text {
		return slices.Clone(args)
	}
	shell := s.shell
	if len(shell) == 0 {
		shell = defaultShell
	}
	return append(slices.Clone(shell), strings.Join(args, " "))
}

// textOf is an instruction as it is written, in one line.
func textOf(c instructions.Command) string {
	if s, ok := c.(fmt.Stringer); ok {
		text, _, more := strings.Cut(s.String(), "\n")
		if more {
			text += " …"
		}
		return text
	}
	return strings.ToUpper(c.Name())
}

// vars are the variables that words can name: ENV hides ARG.
func (s *settings) vars() map[string]string {
	vars := maps.Clone(s.args)
	if vars == nil {
		vars = map[string]string{}
	}
	for _, kv := range s.Env {
		k, v, _ := strings.Cut(kv, "=")
		vars[k] = v
	}
	return vars
}

// set sets a variable of ENV.
func (s *settings) set(key, value string) {
	s.Env = slices.Clone(s.Env)
	if i := slices.IndexFunc(s.Env, func(kv string) bool { return strings.HasPrefix(kv, key+"=") }); i >= 0 {
		s.Env[i] = key + "=" + value
	} else {
		s.Env = append(s.Env, key+"="+value)
	}
}

// within is a path that may be relative to a folder of the image.
func within(dir, p string) string {
	if !path.IsAbs(p) {
		p = path.Join("/", dir, p)
	}
	return path.Clean(p)
}

// command is what a RUN executes. Heredocs are handled as by BuildKit.
func (s *settings) command(c *instructions.RunCommand) (*Run, error) {
	r := &Run{Line: lineOf(c), Text: textOf(c), Workdir: within("/", s.Workdir), Offline: instructions.GetNetwork(c) == instructions.NetworkNone}
	args := c.CmdLine
	if len(c.Files) > 0 {
		if len(args) != 1 || !c.PrependShell {
			return nil, fmt.Errorf("RUN has a heredoc, and no shell to read it")
		}
		switch data := content(c.Files[0]); {
		case parser.MustParseHeredoc(args[0]) == nil: // the shell reads it
			var b strings.Builder
			b.WriteString(args[0])
			for _, file := range c.Files {
				b.WriteString("\n" + file.Data + file.Name)
			}
			args = []string{b.String()}
		case strings.HasPrefix(data, "#!"):
			r.Command = []string{"/bin/sh", "-c", `f=$(mktemp) && printf %s "$1" >"$f" && chmod 700 "$f" && exec "$f"`, "sh", data}
		default:
			args = []string{data}
		}
	}
	if r.Command == nil {
		if !c.PrependShell && len(args) == 0 {
			return nil, fmt.Errorf("RUN has no command")
		}
		r.Command = s.program(args, c.PrependShell)
	}
	env := map[string]string{}
	for k, v := range s.args {
		env[k] = v
	}
	for _, kv := range s.Env {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		r.Env = append(r.Env, k+"="+env[k])
	}
	return r, nil
}

func content(f instructions.ShellInlineFile) string {
	if f.Chomp {
		return parser.ChompHeredocContent(f.Data)
	}
	return f.Data
}

// sources takes what a COPY copies, and where to.
func (f *File) sources(out *copying, c *instructions.SourcesAndDest, s *settings, vars map[string]string) error {
	out.sources = c.SourcePaths
	for _, in := range c.SourceContents {
		text := in.Data
		if in.Expand {
			var err error
			if text, err = f.expandText(text, vars); err != nil {
				return err
			}
		}
		out.inline = append(out.inline, inline{in.Path, text})
	}
	folder := strings.HasSuffix(c.DestPath, "/") || c.DestPath == "." || strings.HasSuffix(c.DestPath, "/.")
	out.dest = within(within("/", s.Workdir), c.DestPath)
	if folder && out.dest != "/" {
		out.dest += "/"
	}
	if !folder && len(out.sources)+len(out.inline) > 1 {
		return fmt.Errorf("%s has several sources: its destination must be a folder, and end with /", strings.Fields(out.text)[0])
	}
	return nil
}

// expandText replaces the variables of a heredoc. Quotes there are its own.
func (f *File) expandText(text string, vars map[string]string) (string, error) {
	lex := *f.lex
	lex.RawQuotes, lex.RawEscapes = true, true
	return f.expandBy(&lex, text, vars)
}
