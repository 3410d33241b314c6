package policy

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/pando-dev/pando/internal/cell"
)

// File is a policy file: YAML, version 1. Every key is optional but version;
// a key that is not here is an error.
//
//	version: 1
//	files:
//	  mounts:
//	    - {source: ../shared, target: /srv/shared}
//	    - {source: ./out, target: /out, writable: true}
//	environment:
//	  set: {CI: "true"}
//	limits: {cpus: 2, memory: 4G, pids: 512, disk: 10G, timeout: 30m}
type File struct {
	Version     int              `yaml:"version"`
	Files       *FileFiles       `yaml:"files"`
	Environment *FileEnvironment `yaml:"environment"`
	Limits      *FileLimits      `yaml:"limits"`
}

// FileFiles is the section files.
type FileFiles struct {
	Mounts []FileMount `yaml:"mounts"`
}

// FileMount is one entry of files.mounts.
type FileMount struct {
	Source   string `yaml:"source"`
	Target   string `yaml:"target"`
	Writable bool   `yaml:"writable"`
}

// FileEnvironment is the section environment.
type FileEnvironment struct {
	Set map[string]string `yaml:"set"`
}

// FileLimits is the section limits, in the words of the flags.
type FileLimits struct {
	CPUs    string `yaml:"cpus"`
	Memory  string `yaml:"memory"`
	PIDs    string `yaml:"pids"`
	Disk    string `yaml:"disk"`
	Timeout string `yaml:"timeout"`
}

// ParseFile reads a policy file. Errors name line and column, and the source
// line with a mark under the place.
func ParseFile(name string, text []byte) (*File, error) {
	var f File
	dec := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict())
	if err := dec.Decode(&f); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fileError(name, "the file is empty", "1:1")
		}
		return nil, cell.Errorf(cell.Invalid, "policy.ParseFile", "see `pando help policy` for the words there are",
			"cannot read policy %s:\n%s", name, strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	var rest any
	if err := dec.Decode(&rest); !errors.Is(err, io.EOF) {
		return nil, fileError(name, "there is more than one document in it", "1:1")
	}
	at := positions(text)
	if where := nothing(text); where != "" {
		return nil, fileError(name, "a value is missing: leave the key out, or say what it is", where)
	}
	if f.Version != Version {
		return nil, fileError(name, "version must be 1", at("$.version"))
	}
	if f.Files != nil {
		if len(f.Files.Mounts) == 0 {
			return nil, fileError(name, "files.mounts is empty: leave it out", at("$.files"))
		}
		for i, m := range f.Files.Mounts {
			if m.Source == "" || m.Target == "" {
				return nil, fileError(name, "a mount needs source and target", at("$.files.mounts["+itoa(i)+"]"))
			}
		}
	}
	if f.Environment != nil {
		if len(f.Environment.Set) == 0 {
			return nil, fileError(name, "environment.set is empty: leave it out", at("$.environment"))
		}
		for k := range f.Environment.Set {
			_, err := CheckEnv(k + "=")
			if strings.Contains(k, "=") {
				err = cell.Errorf(cell.Invalid, "policy.ParseFile", "", "%q is no name of a variable", k)
			}
			if err != nil {
				return nil, fileError(name, err.Error(), at("$.environment.set"))
			}
		}
	}
	if f.Limits != nil {
		if _, _, err := f.Limits.parse(Limits{}); err != nil {
			return nil, fileError(name, err.Error(), at("$.limits"))
		}
	}
	return &f, nil
}

// nothing returns the place of a key without a value, "" if there is none: it
// would be read as if the key were not there. Only variables may be empty.
func nothing(text []byte) string {
	file, err := parser.ParseBytes(text, 0)
	if err != nil || len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return ""
	}
	v := &emptyVisitor{}
	ast.Walk(v, file.Docs[0].Body)
	return v.at
}

type emptyVisitor struct{ at string }

// Visit implements ast.Visitor.
func (v *emptyVisitor) Visit(n ast.Node) ast.Visitor {
	s, text := n.(*ast.StringNode)
	empty := n.Type() == ast.NullType || text && s.Value == "" && !strings.HasPrefix(n.GetPath(), "$.environment.set")
	if empty && v.at == "" {
		pos := n.GetToken().Position
		v.at = itoa(pos.Line) + ":" + itoa(pos.Column)
	}
	return v
}

// parse puts the limits that are given into l, and names them.
func (f *FileLimits) parse(l Limits) (Limits, []string, error) {
	var given []string
	var err error
	set := func(name, text string, read func() error) {
		if text == "" || err != nil {
			return
		}
		if err = read(); err == nil {
			given = append(given, name)
		}
	}
	set("cpus", f.CPUs, func() (e error) { l.CPUs, e = ParseCPUs(f.CPUs); return })
	set("memory", f.Memory, func() (e error) { l.Memory, e = ParseSize(f.Memory); return })
	set("pids", f.PIDs, func() (e error) { l.PIDs, e = ParseCount("processes", f.PIDs); return })
	set("disk", f.Disk, func() (e error) { l.Disk, e = ParseSize(f.Disk); return })
	set("timeout", f.Timeout, func() error {
		d, e := ParseTimeout(f.Timeout)
		l.Timeout = d.Milliseconds()
		return e
	})
	if err == nil && len(given) == 0 {
		err = cell.Errorf(cell.Invalid, "policy.limits", "", "limits is empty: leave it out")
	}
	return l, given, err
}

// fileError is an error at a place of a policy file.
func fileError(name, what, at string) error {
	return cell.Errorf(cell.Invalid, "policy.ParseFile", "", "cannot read policy %s: [%s] %s", name, at, what)
}

// positions finds the line and column of a YAML path in text.
func positions(text []byte) func(path string) string {
	return func(path string) string {
		p, err := yaml.PathString(path)
		if err != nil {
			return "1:1"
		}
		n, err := p.ReadNode(bytes.NewReader(text))
		if err != nil || n == nil || n.GetToken() == nil {
			return "1:1"
		}
		pos := n.GetToken().Position
		return itoa(pos.Line) + ":" + itoa(pos.Column)
	}
}
