package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/pando-dev/pando/api"
)

// templateFile has the fields of a template's description, in the order in which they are
// written. The schema is made from it; about is a field's description.
type templateFile struct {
	Version     int               `yaml:"version" about:"Version of the format: 1."`
	Name        string            `yaml:"name,omitempty" about:"Name of the template, unless the command line gives one."`
	From        string            `yaml:"from,omitempty" about:"Source directory or repository; without it the workspace is empty."`
	Image       string            `yaml:"image,omitempty" about:"Root file system: host (the default), dir:PATH, oci:REF or dockerfile:PATH."`
	Backend     string            `yaml:"backend,omitempty" about:"Isolation: auto (the default) or namespace."`
	Kernel      string            `yaml:"kernel,omitempty" about:"What microVM cells boot: IMAGE, or IMAGE:MODULES; without it one of the host's packages."`
	Warm        string            `yaml:"warm,omitempty" about:"What is kept warm: python (the default), node, java, or a command that speaks the protocol of evaluations."`
	Setup       string            `yaml:"setup,omitempty" about:"Code that is evaluated once; what it leaves behind is in every fork."`
	SetupFile   string            `yaml:"setup_file,omitempty" about:"A file with that code."`
	Ready       string            `yaml:"ready,omitempty" about:"An expression; the template is ready when it is true."`
	Timeout     string            `yaml:"timeout,omitempty" about:"Limit of set-up and readiness together, such as 90s (default: 2m)."`
	Allow       []string          `yaml:"allow,omitempty" about:"What its cells may reach: HOST[:PORT], *.HOST, an address, or a preset such as @pypi."`
	Credentials []string          `yaml:"credentials,omitempty" about:"Credentials that are lent to its cells, by their names."`
	PolicyFile  string            `yaml:"policy_file,omitempty" about:"A policy file."`
	Policy      string            `yaml:"policy,omitempty" about:"The text of a policy file."`
	Limits      *templateLimits   `yaml:"limits,omitempty" about:"What each of its cells may use."`
	Env         map[string]string `yaml:"env,omitempty" about:"Variables of its cells, and their values."`
	WithSecret  []string          `yaml:"with_secret,omitempty" about:"Files of the source that are imported although they look secret."`
	Labels      map[string]string `yaml:"labels,omitempty" about:"Words of your own, for your own programs."`
}

type templateLimits struct {
	CPUs   string `yaml:"cpus,omitempty" about:"Cores, such as 1.5."`
	Memory string `yaml:"memory,omitempty" about:"Bytes, such as 512M."`
	PIDs   string `yaml:"pids,omitempty" about:"Processes and threads."`
	Disk   string `yaml:"disk,omitempty" about:"Bytes written and kept, such as 10G."`
}

// templateVersion is the version of the format.
const templateVersion = 1

// maxTemplateFile bounds a description, in bytes.
const maxTemplateFile = 1 << 20

// readTemplateFile adds to req the fields of a description that no flag has set. Paths in it are
// relative to the file.
func (a *app) readTemplateFile(name string, req *api.TemplateRequest, flag func(string) bool) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return &api.Error{Kind: "not-found", Message: "cannot read the template: " + err.Error(), Hint: "`pando help template` shows what is in one"}
	}
	f, err := parseTemplateFile(name, b)
	if err != nil {
		return err
	}
	home := os.Getenv("HOME")
	beside := func(p string) string {
		switch {
		case filepath.IsAbs(home) && (p == "~" || strings.HasPrefix(p, "~/")):
			return filepath.Join(home, strings.TrimPrefix(p, "~"))
		case p == "" || filepath.IsAbs(p):
			return p
		}
		return filepath.Join(filepath.Dir(name), p)
	}
	set := func(word string, to *string, v string) {
		if !flag(word) {
			*to = v
		}
	}
	req.Name = f.Name
	set("from", &req.From, beside(f.From))
	image := f.Image
	for _, kind := range []string{"dir:", "dockerfile:", "oci:"} {
		path, is := strings.CutPrefix(image, kind)
		if is && (kind != "oci:" || strings.HasPrefix(path, "./") || strings.HasPrefix(path, "../")) {
			image = kind + beside(path)
		}
	}
	set("image", &req.Image, image)
	set("backend", &req.Backend, f.Backend)
	if image, modules, both := strings.Cut(f.Kernel, ":"); both {
		set("kernel", &req.Kernel, beside(image)+":"+beside(modules))
	} else {
		set("kernel", &req.Kernel, beside(image))
	}
	set("warm", &req.Warm, f.Warm)
	set("ready", &req.Ready, f.Ready)
	set("timeout", &req.Timeout, f.Timeout)
	if l := f.Limits; l != nil {
		set("cpus", &req.Limits.CPUs, l.CPUs)
		set("memory", &req.Limits.Memory, l.Memory)
		set("pids", &req.Limits.PIDs, l.PIDs)
		set("disk", &req.Limits.Disk, l.Disk)
	}
	set("setup", &req.Setup, f.Setup)
	if f.SetupFile != "" && !flag("setup") {
		if req.Setup, err = a.code("@"+beside(f.SetupFile), "set-up"); err != nil {
			return err
		}
	}
	set("policy", &req.Policy, f.Policy)
	if f.PolicyFile != "" && !flag("policy") {
		if req.Policy, err = a.readPolicyFile(beside(f.PolicyFile)); err != nil {
			return err
		}
	}
	req.Allow = append(f.Allow, req.Allow...)
	req.Credential = append(f.Credentials, req.Credential...)
	req.WithSecret = append(f.WithSecret, req.WithSecret...)
	for k, v := range f.Env {
		req.Env = append(req.Env, k+"="+v)
	}
	sort.Strings(req.Env)
	req.Labels = f.Labels
	return nil
}

// parseTemplateFile parses a description. An unknown field is an error with its position.
func parseTemplateFile(name string, b []byte) (f templateFile, err error) {
	bad := func(text string) error {
		return &api.Error{Kind: "invalid", Message: fmt.Sprintf("cannot read template %s: %s", name, strings.TrimSpace(text)),
			Hint: "`pando help template` shows the words there are"}
	}
	if len(b) > maxTemplateFile {
		return f, bad("it has more than " + size(maxTemplateFile))
	}
	defer func() { // the library panics on hostile input
		if p := recover(); p != nil {
			err = bad("it can't be read as YAML")
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(b), yaml.DisallowUnknownField())
	if err := dec.Decode(&f); err != nil && !errors.Is(err, io.EOF) { // an empty file has no version

		return f, bad(yaml.FormatError(err, false, true))
	}
	var more any
	if dec.Decode(&more) == nil {
		return f, bad("there is more than one document in it")
	}
	switch {
	case f.Version == 0:
		return f, bad("it has no version; begin it with `version: 1`")
	case f.Version != templateVersion:
		return f, bad(fmt.Sprintf("its version is %d, and this pando knows %d", f.Version, templateVersion))
	case f.Setup != "" && f.SetupFile != "":
		return f, bad("setup and setup_file are both there")
	case f.Policy != "" && f.PolicyFile != "":
		return f, bad("policy and policy_file are both there")
	}
	return f, nil
}

// templateYAML writes the description of req.
func templateYAML(req api.TemplateRequest) []byte {
	f := templateFile{
		Version: templateVersion, Name: req.Name, From: req.From, Image: req.Image, Backend: req.Backend, Kernel: req.Kernel, Warm: req.Warm,
		Setup: req.Setup, Ready: req.Ready, Timeout: req.Timeout, Allow: req.Allow, Credentials: req.Credential, Policy: req.Policy,
		WithSecret: req.WithSecret, Labels: req.Labels,
	}
	if l := req.Limits; l != (api.Limits{}) {
		f.Limits = &templateLimits{l.CPUs, l.Memory, l.PIDs, l.Disk}
	}
	for _, kv := range req.Env {
		k, v, _ := strings.Cut(kv, "=")
		if f.Env == nil {
			f.Env = map[string]string{}
		}
		f.Env[k] = v
	}
	b, err := yaml.MarshalWithOptions(f, yaml.UseLiteralStyleIfMultiline(true), yaml.IndentSequence(true))
	if err != nil { // texts, lists and maps of texts: cannot fail
		return []byte("# " + err.Error() + "\n")
	}
	return b
}
