package cli

import (
	"strings"

	"github.com/google/shlex"
	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

// serviceFlags are the flags for services beside a cell.
type serviceFlags struct{ services, env []string }

func (s *serviceFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringArrayVar(&s.services, "service", nil, "run an image beside the new cell, which reaches it by name: [NAME=]IMAGE [ARGUMENTS], such as postgres:16")
	f.StringArrayVar(&s.env, "service-env", nil, "set a variable of a service: [NAME:]VARIABLE=VALUE, or [NAME:]VARIABLE to pass your own")
	annotate(f, perStart, "service", "service-env")
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
		i := -1
		for j := range list {
			if of == "" && len(list) == 1 || of != "" && (list[j].Name == of || list[j].Name == "" && api.ServiceName(list[j].Image) == of) {
				i = j
			}
		}
		switch {
		case i >= 0:
			list[i].Env = append(list[i].Env, passed...)
		case of == "":
			return nil, usage("--service-env %s: write NAME:%s, with the name of one of the services", kv, kv)
		default:
			return nil, usage("--service-env %s: no --service has the name %s", text, of)
		}
	}
	return list, nil
}
