package dockerfile

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/pando-dev/pando/internal/cell"
)

// MaxSize bounds a Dockerfile, in bytes.
const MaxSize = 1 << 20

// maxSteps bounds the instructions of one Dockerfile.
const maxSteps = 1000

// A File is a Dockerfile with instructions that can all be carried out.
type File struct {
	Notes  []string // what has no meaning in a cell
	stages []stage
	lex    *shell.Lex
	meta   map[string]string // ARG before the first FROM
	// from says which earlier stage a COPY copies from; those of the context and of images are not in it.
	from map[instructions.Command]int
	// expanded is how many bytes words with variables have become.
	expanded int
}

// stage is one FROM, and what follows it.
type stage struct {
	name  string
	line  int
	on    int    // the stage that it continues; -1: an image
	image string // "scratch", or a reference
	steps []instructions.Command
}

// Parse reads a Dockerfile, and checks it. All errors are Invalid or Unsupported, and name a
// line where there is one.
func Parse(text []byte) (*File, error) {
	if len(text) > MaxSize {
		return nil, cell.Errorf(cell.Invalid, "dockerfile.Parse", "", "cannot read the Dockerfile: it has more than %d bytes", MaxSize)
	}
	for n, line := 1, text; len(line) > 0; n++ {
		var this []byte
		if this, line, _ = bytes.Cut(line, []byte("\n")); !utf8.Valid(this) {
			return nil, invalid(n, errors.New("it is not text in UTF-8"))
		}
	}
	res, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		return nil, invalid(0, err)
	}
	stages, meta, err := instructions.Parse(res.AST, nil)
	if err != nil {
		return nil, invalid(0, err)
	}
	if len(stages) == 0 {
		return nil, cell.Errorf(cell.Invalid, "dockerfile.Parse", "begin it with FROM", "cannot read the Dockerfile: it has no FROM")
	}
	f := &File{lex: shell.NewLex(res.EscapeToken), meta: platformArgs(), from: map[instructions.Command]int{}}
	if len(meta) > maxSteps {
		return nil, cell.Errorf(cell.Unsupported, "dockerfile.Parse", "", "cannot build the Dockerfile: it has more than %d instructions", maxSteps)
	}
	for _, a := range meta {
		if err := f.arg(f.meta, f.meta, &a, nil); err != nil {
			return nil, invalid(lineOf(&a), err)
		}
	}
	n := 0
	for i := range stages {
		s, err := f.stage(&stages[i])
		if err != nil {
			return nil, err
		}
		if n += 1 + len(s.steps); n > maxSteps {
			return nil, cell.Errorf(cell.Unsupported, "dockerfile.Parse", "gather commands in fewer RUN instructions", "cannot build the Dockerfile: it has more than %d instructions", maxSteps)
		}
		f.stages = append(f.stages, s)
	}
	return f, nil
}

// platformArgs are the variables that are there before the first FROM.
func platformArgs() map[string]string {
	out := map[string]string{}
	for _, side := range []string{"BUILD", "TARGET"} {
		out[side+"PLATFORM"], out[side+"OS"], out[side+"ARCH"], out[side+"VARIANT"] = "linux/"+runtime.GOARCH, "linux", runtime.GOARCH, ""
	}
	return out
}

// stage checks one stage.
func (f *File) stage(s *instructions.Stage) (out stage, err error) {
	line := first(s.Location)
	out = stage{name: strings.ToLower(s.Name), line: line, on: -1}
	base, err := f.expand(s.BaseName, f.meta)
	if err != nil {
		return out, invalid(line, err)
	}
	if base == "" {
		return out, invalid(line, fmt.Errorf("FROM %s names no image", s.BaseName))
	}
	if p, err := f.expand(s.Platform, f.meta); err != nil {
		return out, invalid(line, err)
	} else if p != "" && p != "linux/"+runtime.GOARCH && p != "linux" {
		return out, unsupported(line, "leave --platform out", "FROM --platform=%s: this host is linux/%s", p, runtime.GOARCH)
	}
	if out.on = f.stageOf(base); out.on < 0 {
		out.image = base
	}
	for _, c := range s.Commands {
		if err := f.check(c, out.name); err != nil {
			return out, err
		}
		out.steps = append(out.steps, c)
	}
	return out, nil
}

// triggers reads what ONBUILD has left for a stage of a line.
func (f *File) triggers(line int, text []string) (out []instructions.Command, err error) {
	size := 0
	for _, t := range text {
		if size += len(t); size > MaxSize {
			return nil, unsupported(line, "use another image", "the image's ONBUILD instructions have more than %d bytes", MaxSize)
		}
		res, err := parser.Parse(strings.NewReader(t))
		if err == nil && len(res.AST.Children) != 1 {
			err = errors.New("it has to be one instruction")
		}
		if err != nil {
			return nil, invalid(line, fmt.Errorf("ONBUILD %s: %w", cell.Clip(t), err))
		}
		node := res.AST.Children[0]
		node.StartLine, node.EndLine = line, line
		c, err := instructions.ParseCommand(node)
		if err != nil {
			return nil, invalid(line, fmt.Errorf("ONBUILD %s: %w", cell.Clip(t), err))
		}
		switch c := c.(type) {
		case *instructions.OnbuildCommand:
			return nil, invalid(line, errors.New("ONBUILD ONBUILD is no instruction"))
		case *instructions.CopyCommand:
			if c.From != "" {
				return nil, unsupported(line, "write it as an instruction of the Dockerfile", "ONBUILD COPY --from is not supported")
			}
		}
		if err := f.check(c, ""); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// stageOf returns the number of an earlier stage; -1: there is none of that name.
func (f *File) stageOf(name string) int {
	for i := len(f.stages) - 1; i >= 0; i-- {
		if f.stages[i].name == strings.ToLower(name) && name != "" {
			return i
		}
	}
	return -1
}

// check refuses an instruction of a stage that can't be carried out, and notes what is not used.
func (f *File) check(c instructions.Command, stage string) error {
	line := lineOf(c)
	switch c := c.(type) {
	case *instructions.RunCommand:
		if err := c.Expand(func(word string) (string, error) { return word, nil }); err != nil { // which reads the flags
			return invalid(line, err)
		}
		if len(instructions.GetMounts(c)) > 0 {
			return unsupported(line, "leave --mount out; pando run --cache keeps caches for a source", "RUN --mount is not supported")
		}
		if instructions.GetNetwork(c) == instructions.NetworkHost {
			return unsupported(line, "leave --network=host out: --allow says what a build may reach", "RUN --network=host is not supported")
		}
		if instructions.GetSecurity(c) != instructions.SecuritySandbox || len(instructions.GetDevices(c)) > 0 {
			return unsupported(line, "leave the flag out", "RUN --security and --device are not supported")
		}
	case *instructions.CopyCommand:
		if c.Parents {
			return unsupported(line, "leave --parents out", "COPY --parents is not supported")
		}
		if c.From == "" {
			break
		}
		n, err := strconv.Atoi(c.From)
		switch on := f.stageOf(c.From); {
		case on >= 0:
			f.from[c] = on
		case err == nil && n >= 0 && n < len(f.stages):
			f.from[c] = n
		case err == nil, strings.EqualFold(c.From, stage):
			return invalid(line, fmt.Errorf("COPY --from=%s names no earlier stage", c.From))
		case strings.EqualFold(c.From, "scratch"):
			return invalid(line, errors.New("COPY --from=scratch: there is nothing in it"))
		}
	case *instructions.AddCommand:
		if c.Checksum != "" || c.KeepGitDir != nil {
			return unsupported(line, "fetch it in a RUN instruction", "ADD --checksum and --keep-git-dir are not supported")
		}
		for _, s := range c.SourcePaths {
			if strings.Contains(s, "://") || strings.HasPrefix(s, "git@") {
				return unsupported(line, "fetch it in a RUN instruction, with --allow for its host", "ADD of %s is not supported: nothing is fetched outside of a cell", cell.Clip(s))
			}
		}
	case *instructions.EnvCommand, *instructions.ArgCommand, *instructions.WorkdirCommand, *instructions.ShellCommand,
		*instructions.CmdCommand, *instructions.EntrypointCommand, *instructions.LabelCommand, *instructions.MaintainerCommand,
		*instructions.OnbuildCommand, *instructions.ExposeCommand, *instructions.VolumeCommand, *instructions.StopSignalCommand,
		*instructions.HealthCheckCommand:
	case *instructions.UserCommand:
		f.Notes = append(f.Notes, fmt.Sprintf("line %d of the Dockerfile: USER is not used: commands run as the cell's own user", line))
	default:
		return unsupported(line, "leave it out", "%s is not supported", strings.ToUpper(c.Name()))
	}
	return nil
}

// The bounds of variables: of all of a stage together, and of what one word can become, in bytes.
const (
	maxVariables = 1000
	maxText      = 1 << 20
	maxExpansion = 8 << 20
	// maxExpanded bounds what all words of a build can become.
	maxExpanded = 64 << 20
)

// expand replaces the variables of a word.
func (f *File) expand(word string, vars map[string]string) (string, error) {
	return f.expandBy(f.lex, word, vars)
}

func (f *File) expandBy(lex *shell.Lex, word string, vars map[string]string) (string, error) {
	n, nested := strings.Count(word, "$"), strings.Count(word, "${")
	longest := 0
	if n > 0 {
		for _, v := range vars {
			longest = max(longest, len(v))
		}
	}
	if nested > maxVariables { // one may be within the other
		return "", fmt.Errorf("it has more than %d variables", maxVariables)
	}
	if nested > 0 && strings.ContainsAny(word, "#%/") { // patterns, which cost their length, and replacements, which may be as long as the word
		n *= len(word)
	}
	n *= longest + 1
	if f.expanded += n; n > maxExpansion || f.expanded > maxExpanded {
		return "", errors.New("its variables make it too long")
	}
	out, _, err := lex.ProcessWord(word, variables(vars))
	return out, err
}

// bounded refuses variables that are too many, or too long together.
func bounded(vars map[string]string) error {
	size := 0
	for k, v := range vars {
		size += len(k) + len(v)
	}
	if size > maxText || len(vars) > maxVariables {
		return fmt.Errorf("its variables have more than %d bytes, or are more than %d", maxText, maxVariables)
	}
	return nil
}

// variables is a set of variables as BuildKit's expansion takes it.
type variables map[string]string

func (v variables) Get(key string) (string, bool) {
	s, ok := v[key]
	return s, ok
}

func (v variables) Keys() (out []string) {
	for k := range v {
		out = append(out, k)
	}
	return out
}

// arg gives the variables of an ARG their values: its own, or that of the variable of the same name before the
// first FROM. Words are expanded in see.
func (f *File) arg(set, see map[string]string, c *instructions.ArgCommand, meta map[string]string) error {
	for _, a := range c.Args {
		key, err := f.expand(a.Key, see)
		if err != nil {
			return err
		}
		if a.Value != nil {
			if set[key], err = f.expand(*a.Value, see); err != nil {
				return err
			}
			see[key] = set[key]
		} else if v, ok := meta[key]; ok {
			set[key], see[key] = v, v
		}
		if err := bounded(see); err != nil {
			return err
		}
	}
	return nil
}

func lineOf(c interface{ Location() []parser.Range }) int { return first(c.Location()) }

func first(at []parser.Range) int {
	if len(at) == 0 {
		return 0
	}
	return at[0].Start.Line
}

// located is an error that names its line.
type located struct{ error }

func (l located) Unwrap() error { return l.error }

// invalid is the error for text that is no Dockerfile. line is 0 where the error itself may know it.
func invalid(line int, err error) error {
	if at, ok := errors.AsType[*parser.LocationError](err); ok && line == 0 && len(at.Locations) > 0 {
		line = first(at.Locations[0])
	}
	text := strings.TrimSpace(err.Error())
	if rest, ok := strings.CutPrefix(text, "dockerfile parse error on line "); ok { // said by BuildKit
		if n, rest, ok := strings.Cut(rest, ": "); ok {
			text = rest
			if line == 0 {
				line, _ = strconv.Atoi(n)
			}
		}
	}
	if line == 0 {
		return cell.Errorf(cell.Invalid, "dockerfile.Parse", "", "cannot read the Dockerfile: %s", text)
	}
	return located{cell.Errorf(cell.Invalid, "dockerfile.Parse", "", "line %d of the Dockerfile: %s", line, text)}
}

func unsupported(line int, hint, format string, args ...any) error {
	return located{cell.Errorf(cell.Unsupported, "dockerfile.Parse", hint, "line %d of the Dockerfile: %s", line, fmt.Sprintf(format, args...))}
}
