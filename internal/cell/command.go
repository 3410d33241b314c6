package cell

import (
	"cmp"
	"path/filepath"
	"strings"
)

// CommandEnv is the environment of a command: the base, which the user that it runs as and
// what was asked for complete; the latter wins. term is for a command with a terminal; "" is a
// common one.
func CommandEnv(base, asked []string, u User, tty bool, term string) []string {
	env := map[string]string{}
	var order []string
	put := func(kv string) {
		k, v, _ := strings.Cut(kv, "=")
		if _, ok := env[k]; !ok {
			order = append(order, k)
		}
		env[k] = v
	}
	// Programs that ask on their own for a newer version of themselves are refused by
	// most cells, which then say so although the command did not need it.
	put("NPM_CONFIG_UPDATE_NOTIFIER=false")
	put("NO_UPDATE_NOTIFIER=1")
	for _, kv := range base {
		put(kv)
	}
	put("HOME=" + u.Home)
	put("USER=" + u.Name)
	put("LOGNAME=" + u.Name)
	put("PANDO=1")
	if tty {
		put("TERM=" + cmp.Or(term, "xterm-256color"))
	}
	for _, kv := range asked {
		put(kv)
	}
	out := make([]string, 0, len(order))
	for _, k := range order {
		out = append(out, k+"="+env[k])
	}
	return out
}

// TermIn is the terminal that an environment names; "" for none.
func TermIn(env []string) string {
	for _, kv := range env {
		if term, ok := strings.CutPrefix(kv, "TERM="); ok && term != "" {
			return term
		}
	}
	return ""
}

// Candidates are the paths that execvp would try for a program, with PATH of an environment.
func Candidates(name string, env []string, workdir string) []string {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(workdir, name)
		}
		return []string{name}
	}
	var out []string
	for _, kv := range env {
		if p, ok := strings.CutPrefix(kv, "PATH="); ok {
			for _, d := range strings.Split(p, ":") {
				if filepath.IsAbs(d) {
					out = append(out, filepath.Join(d, name))
				}
			}
		}
	}
	return out
}
