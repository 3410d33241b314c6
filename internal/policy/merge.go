package policy

import (
	"strconv"

	"github.com/pando-dev/pando/internal/cell"
)

func itoa(n int) string { return strconv.Itoa(n) }

// Flags is the run's own layer.
type Flags struct {
	Mounts  []string // SRC:DST[:rw]
	Env     []string // NAME=value
	Secrets []string
	Limits  FileLimits
	// Allow is whom the cell may reach: HOST[:PORT], *.HOST, an address or a
	// prefix, @PRESET.
	Allow       []string
	Credentials []string // handles
}

// Result is an effective policy with what is not part of its digest.
type Result struct {
	Effective
	Env   []string // NAME=value, of file and flags; flags win
	Asked []string // limits that somebody gave: they must hold
	// Origins says where each line comes from.
	Origins Origins
}

// Merge makes the effective policy of defaults, a file (nil for none) and
// flags. Limits of flags may only narrow those of the file.
func Merge(base Effective, file *File, flags Flags) (Result, error) {
	r := Result{Effective: base}
	env := map[string]string{}
	var order []string
	put := func(name, kv string) {
		if _, ok := env[name]; !ok {
			order = append(order, name)
		}
		env[name] = kv
	}
	asked := map[string]bool{}
	if file != nil {
		if file.Files != nil {
			for _, m := range file.Files.Mounts {
				r.Files.Mounts = append(r.Files.Mounts, Mount(m))
			}
		}
		if file.Environment != nil {
			for k, v := range file.Environment.Set {
				put(k, k+"="+v)
			}
		}
		if file.Limits != nil {
			l, given, err := file.Limits.parse(r.Limits)
			if err != nil {
				return r, err
			}
			r.Limits = l
			for _, g := range given {
				asked[g] = true
			}
		}
	}
	for _, s := range flags.Mounts {
		m, err := ParseMount(s)
		if err != nil {
			return r, err
		}
		r.Files.Mounts = append(r.Files.Mounts, m)
	}
	for _, kv := range flags.Env {
		name, err := CheckEnv(kv)
		if err != nil {
			return r, err
		}
		put(name, kv)
	}
	r.Files.Secrets = append(r.Files.Secrets, flags.Secrets...)
	if flags.Limits != (FileLimits{}) {
		l, given, err := flags.Limits.parse(r.Limits)
		if err != nil {
			return r, err
		}
		for _, g := range given {
			if asked[g] && wider(g, l, r.Limits) {
				return r, cell.Errorf(cell.Denied, "policy.Merge", "leave out --"+g+", or change the policy file",
					"the policy file limits %s more than --%s asks for", g, g)
			}
			asked[g] = true
		}
		r.Limits = l
	}
	if err := r.addNetwork(flags); err != nil {
		return r, err
	}
	for _, n := range order {
		r.Environment.Set = append(r.Environment.Set, n)
		r.Env = append(r.Env, env[n])
	}
	for _, n := range []string{"cpus", "memory", "pids", "disk", "timeout"} {
		if asked[n] {
			r.Asked = append(r.Asked, n)
		}
	}
	return r, nil
}

func wider(limit string, a, b Limits) bool {
	switch limit {
	case "cpus":
		return a.CPUs > b.CPUs
	case "memory":
		return a.Memory > b.Memory
	case "pids":
		return a.PIDs > b.PIDs
	case "disk":
		return a.Disk > b.Disk
	case "timeout":
		return a.Timeout > b.Timeout
	}
	return false
}

// addNetwork adds the rules and credentials of flags.
func (r *Result) addNetwork(flags Flags) error {
	origins := map[string]string{}
	for _, s := range flags.Allow {
		t, err := parseTarget(s)
		if err != nil {
			return err
		}
		rule := t.rule(webPorts())
		r.Network.Allow = append(r.Network.Allow, rule)
		origins["allow "+rule.key()] = "--allow " + s
	}
	for _, h := range flags.Credentials {
		if !isHandle(h) {
			return cell.Errorf(cell.Invalid, "policy.Merge", "`pando credential ls` lists those that are kept", "%q is no name of a credential", h)
		}
		r.Credentials = append(r.Credentials, Credential{Handle: h})
		origins["credential "+h] = "--credential " + h
	}
	r.Network, r.Credentials = r.Network.canonical(), canonicalCredentials(r.Credentials)
	r.Origins.Lines = map[string]string{}
	for i, rule := range r.Network.Allow {
		r.Origins.Lines["allow "+itoa(i+1)] = origins["allow "+rule.key()]
	}
	for _, c := range r.Credentials {
		r.Origins.Lines["credential "+c.Handle] = origins["credential "+c.Handle]
	}
	return nil
}
