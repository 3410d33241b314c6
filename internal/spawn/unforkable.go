package spawn

import (
	"regexp"
	"strings"
	"sync"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/receipt"
)

// unforkable makes the hint of a refusal that names the backend which could do it
// the whole command.
func (b *build) unforkable(err error) error {
	before, ok := strings.CutSuffix(cell.HintOf(err), cell.ForkSandbox)
	if !ok {
		return err
	}
	return cell.Errorf(cell.KindOf(err), "spawn.BuildTemplate", before+"fork its whole sandbox, with --backend gvisor or microvm: "+buildCommand(b.p.req, "gvisor", b.m.cfg.Redactor), "%w", err)
}

// longArgument is how long an argument may be that is repeated to a person.
const longArgument = 200

// buildCommand is the command line of a request, on another backend.
func buildCommand(req api.TemplateRequest, backend string, redactor *receipt.Redactor) string {
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
		if name, _, _ := strings.Cut(kv, "="); redactor.String(kv) != kv {
			kv = name // the caller's own has the secret
		}
		add("env", kv)
	}
	add("with-secret", req.WithSecret...)
	if req.Policy != "" {
		args = append(args, "--policy FILE")
	}
	return strings.Join(args, " ")
}

var plainWord = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[\w@%+=:,./-]+$`) })

// shellWord is an argument as a shell takes it.
func shellWord(s string) string {
	if plainWord().MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
