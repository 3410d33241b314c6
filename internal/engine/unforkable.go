package engine

import (
	"regexp"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	interpreters "github.com/pando-dev/pando/internal/interp"
)

// unforkable adds to a refusal of what can't be forked by itself how the same
// template is built where it can be.
func (b *build) unforkable(err error) error {
	if _, builtIn := interpreters.KindOf(b.p.warm.Kind); cell.KindOf(err) != cell.Unsupported || !builtIn || b.p.warm.Kind == cell.WarmPython {
		return err
	}
	return cell.Errorf(cell.Unsupported, "engine.BuildTemplate", "fork its whole sandbox: "+buildCommand(b.p.req, "gvisor"), "%w", err)
}

// longArgument is how long an argument may be that is repeated to a person.
const longArgument = 200

// buildCommand is the command line of a request, on another backend.
func buildCommand(req api.TemplateRequest, backend string) string {
	args := []string{"pando template build", shellWord(req.Name), "--backend", backend}
	add := func(flag string, values ...string) {
		for _, v := range values {
			switch {
			case v == "":
			case len(v) > longArgument || strings.Contains(v, "\n"):
				args = append(args, "--"+flag, "@FILE")
			default:
				args = append(args, "--"+flag, shellWord(v))
			}
		}
	}
	add("warm", req.Warm)
	add("from", req.From)
	add("image", req.Image)
	add("setup", redactor.String(req.Setup))
	add("ready", redactor.String(req.Ready))
	add("timeout", req.Timeout)
	add("allow", req.Allow...)
	add("credential", req.Credential...)
	add("cpus", req.Limits.CPUs)
	add("memory", req.Limits.Memory)
	add("pids", req.Limits.PIDs)
	add("disk", req.Limits.Disk)
	for _, kv := range req.Env {
		name, _, _ := strings.Cut(kv, "=")
		add("env", name+"=…")
	}
	add("with-secret", req.WithSecret...)
	if req.Policy != "" {
		args = append(args, "--policy FILE")
	}
	return strings.Join(args, " ")
}

var plainWord = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// shellWord is an argument as a shell takes it.
func shellWord(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return shellQuoted(s)
}
