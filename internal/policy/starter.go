package policy

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"slices"
	"strings"
)

// Starter writes a first policy for a project: with comments, for what its
// files say that its tools need. Nothing of the project is executed, and its
// files are looked at, not followed.
func Starter(project fs.FS) string {
	has := func(names ...string) string {
		for _, n := range names {
			if st, err := fs.Stat(project, n); err == nil && st.Mode().IsRegular() {
				return n
			}
		}
		return ""
	}
	type need struct{ target, why string }
	var allow []need
	for _, n := range []struct {
		target string
		files  []string
	}{
		{"@npm", []string{"package.json", "package-lock.json", "pnpm-lock.yaml", "yarn.lock"}},
		{"@go", []string{"go.mod", "go.work"}},
		{"@crates", []string{"Cargo.toml"}},
		{"@pypi", []string{"pyproject.toml", "requirements.txt", "setup.py", "uv.lock", "Pipfile"}},
		{"@debian", []string{"debian/control", "Dockerfile"}},
	} {
		if f := has(n.files...); f != "" {
			allow = append(allow, need{n.target, f})
		}
	}
	remotes := gitRemotes(project)
	var b strings.Builder
	b.WriteString(`# What a cell may do that works on this project. See: pando help policy
#   pando policy check      does it make sense?
#   pando policy show       what it comes to, with every preset written out
#   pando policy why 'GET https://example.com/x'
# A run uses this file when it is pando.policy.yaml at the top of the project and
# you have allowed it as it is: pando policy allow
version: 1

`)
	if len(allow)+len(remotes) == 0 {
		b.WriteString("# Nothing here needs a network that pando knows of. Without this section a\n# cell has none.\n# network:\n#   allow:\n#     - \"@npm\"\n#     - api.example.com\n\n")
	} else {
		b.WriteString("# What the cell may reach; the rest is denied. A host alone is its ports 80 and\n# 443. Methods and paths are looked at in the connection, which is opened then.\n")
		comment := ""
		if len(allow) == 0 {
			comment = "# "
		}
		b.WriteString(comment + "network:\n" + comment + "  allow:\n")
		for _, n := range allow {
			fmt.Fprintf(&b, "    - %q%s# %s\n", n.target, strings.Repeat(" ", max(1, 24-len(n.target))), n.why)
		}
		for _, h := range remotes {
			fmt.Fprintf(&b, "    # - %s%s# git remote: fetching and pushing\n", h, strings.Repeat(" ", max(1, 24-len(h))))
		}
		b.WriteString("    # - {host: api.github.com, methods: [GET], paths: [/repos/me/**]}\n")
		b.WriteString(comment + "  # ask:                      # a person is asked: pando approvals\n  #   - {host: api.github.com, methods: [POST]}\n  # deny:                     # wins over everything\n  #   - \"*.internal.example\"\n\n")
	}
	b.WriteString(`# Secrets that the cell uses without having them: pando credential add
# credentials:
#   - github

`)
	var hidden []string
	for _, n := range []string{".env", ".npmrc", ".pypirc", "secrets", ".aws", "terraform.tfstate"} {
		if _, err := fs.Stat(project, n); err == nil {
			hidden = append(hidden, n)
		}
	}
	if len(hidden) > 0 {
		b.WriteString("# Paths of the project that the cell finds empty. (What looks secret is not\n# imported in the first place.)\nfiles:\n  hidden: [" + strings.Join(hidden, ", ") + "]\n\n")
	} else {
		b.WriteString("# files:\n#   hidden: [config/keys]     # the cell finds them empty\n#   read_only: [LICENSE]\n#   root: read-only           # commands write nothing to an image\n#   mounts:\n#     - {source: ../shared, target: /srv/shared}\n\n")
	}
	b.WriteString(`# isolation: {least: gvisor}  # the weakest backend that may run it: none, namespace, gvisor, microvm

# secrets: mask               # leave out secrets that git tracks, too

# environment:
#   set: {CI: "true"}

limits:
  timeout: 1h
  # memory: 4G
  # budget: time=2h,tokens=2M,usd=5  # of the cell and its forks; then they are paused, and it asks
  # egress: 100M                # bytes that leave the cell in one run
`)
	return b.String()
}

// gitRemotes lists the hosts that the remotes of a repository are on.
func gitRemotes(project fs.FS) []string {
	st, err := fs.Stat(project, ".git/config")
	if err != nil || !st.Mode().IsRegular() || st.Size() > 1<<20 {
		return nil
	}
	b, err := fs.ReadFile(project, ".git/config")
	if err != nil {
		return nil
	}
	var out []string
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		key, value, ok := strings.Cut(strings.TrimSpace(lines.Text()), "=")
		if !ok || strings.TrimSpace(key) != "url" {
			continue
		}
		if h := remoteHost(strings.TrimSpace(value)); h != "" && !slices.Contains(out, h) {
			out = append(out, h)
		}
	}
	slices.Sort(out)
	return out
}

// remoteHost is HOST or HOST:22 of a remote's URL, "" for paths.
func remoteHost(s string) string {
	host, port := "", ""
	if u, err := url.Parse(s); err == nil && u.Host != "" {
		host, port = u.Hostname(), u.Port()
		if u.Scheme == "ssh" && port == "" {
			port = "22"
		}
	} else if before, after, ok := strings.Cut(s, ":"); ok && !strings.Contains(before, "/") && !path.IsAbs(after) {
		host, port = before[strings.LastIndexByte(before, '@')+1:], "22"
	}
	c, err := CanonicalHost(host)
	if err != nil || host == "" || !IsName(c) {
		return ""
	}
	if port != "" {
		if p, err := ParseSpan(port); err != nil || p.From != p.To {
			return ""
		}
		c += ":" + port
	}
	return c
}
