package cli

import (
	"strings"

	"github.com/google/shlex"
	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

// serviceFlags are the flags for services beside a cell.
type serviceFlags struct{ services, env, ready []string }

func (s *serviceFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringArrayVar(&s.services, "service", nil, "run an image beside the new cell, which reaches it by name: [NAME=]IMAGE [ARGUMENTS], such as postgres:16")
	f.StringArrayVar(&s.env, "service-env", nil, "set a variable of a service: [NAME:]VARIABLE=VALUE, or [NAME:]VARIABLE to pass your own")
	f.StringArrayVar(&s.ready, "service-ready", nil, "wait until this shell command succeeds beside a service: [NAME:]COMMAND, such as 'redis-cli ping | grep PONG'")
	annotate(f, perStart, "service", "service-env", "service-ready")
}

// requests are the services that the flags ask for.
func (s *serviceFlags) requests() ([]api.ServiceRequest, error) {
	var list []api.ServiceRequest
	for _, text := range s.services {
		words, err := shlex.Split(text)
		if err != nil || len(words) == 0 {
			return nil, usage("--service takes [NAME=]IMAGE, and words for its program as a shell has them, not %q", text)
		}
		q := api.ServiceRequest{Image: words[0], Command: words[1:]}
		if name, image, named := strings.Cut(words[0], "="); named && !strings.ContainsAny(name, "/:") {
			q.Name, q.Image = name, image
		}
		list = append(list, q)
	}
	for _, text := range s.env {
		of, kv, named := strings.Cut(text, ":")
		if named && strings.Contains(of, "=") { // it is in the value
			named = false
		}
		if !named {
			of, kv = "", text
		}
		passed, err := passEnv([]string{kv})
		if err != nil {
			return nil, err
		}
		q := serviceNamed(list, of)
		switch {
		case q != nil:
			q.Env = append(q.Env, passed...)
		case of == "":
			return nil, usage("--service-env %s: write NAME:%s, with the name of one of the services", kv, kv)
		default:
			return nil, usage("--service-env %s: no --service has the name %s", text, of)
		}
	}
	for _, text := range s.ready {
		of, command, _ := strings.Cut(text, ":")
		q := serviceNamed(list, of)
		if q == nil || of == "" { // the colon is the command's
			q, command = serviceNamed(list, ""), text
		}
		if q == nil {
			return nil, usage("--service-ready %s: write NAME:COMMAND, with the name of one of the services", text)
		}
		if q.Ready != "" || strings.TrimSpace(command) == "" {
			return nil, usage("--service-ready takes one command for each service: %q", text)
		}
		q.Ready = command
	}
	return list, nil
}

// serviceNamed is the one of a list that has a name; for "" the only one. nil: there is none.
func serviceNamed(list []api.ServiceRequest, name string) *api.ServiceRequest {
	if name == "" && len(list) == 1 {
		return &list[0]
	}
	for i := range list {
		if q := &list[i]; name != "" && (q.Name == name || q.Name == "" && api.ServiceName(q.Image) == name) {
			return q
		}
	}
	return nil
}
