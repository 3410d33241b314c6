package govern

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/policy/decide"
	"github.com/pando-dev/pando/internal/state"
)

const whyDenied = "denied by the policy"

// denyPrograms covers the programs that the policy denies with one that says
// so. A mount covers the file itself, whatever path leads there. It covers what
// the cell has of the host, in the directories of PATH and where a pattern is a
// path; a copy that a command makes is another file.
func (m *Manager) denyPrograms(c *state.Cell, mounts []cell.Mount) ([]cell.Mount, error) {
	mounts = slices.DeleteFunc(mounts, func(m cell.Mount) bool { return m.Role == cell.RoleDenied })
	for _, pattern := range c.Setup.Programs {
		denial := cell.Denial{Rule: "deny program " + pattern, Origin: c.Setup.Origins.Lines["deny program "+pattern]}
		rule := denial.Rule
		if denial.Origin != "" {
			rule += " (" + denial.Origin + ")"
		}
		found, err := programs(mounts, pattern, searchPath(c.Setup.Env))
		if err != nil {
			return nil, err
		}
		covered := 0
		for _, f := range found {
			if f.why != "" {
				c.Setup.Unmasked = append(c.Setup.Unmasked, f.at+" is not denied: "+f.why)
				continue
			}
			source, err := m.deniedProgram(c, rule, f.at)
			if err != nil {
				return nil, err
			}
			covered++
			if !slices.ContainsFunc(mounts, func(m cell.Mount) bool { return m.Role == cell.RoleDenied && m.Target == f.at }) {
				mounts = append(mounts, cell.Mount{Kind: cell.Bind, Target: f.at, Source: source, ReadOnly: true, Owned: true, Role: cell.RoleDenied, Why: whyDenied, Denies: &denial})
			}
		}
		if covered == 0 && len(found) == 0 {
			c.Setup.Unmasked = append(c.Setup.Unmasked, pattern+" is not denied: it is not among the programs of the image")
		}
	}
	return mounts, nil
}

// deniedProgram writes what runs instead of a denied program: a file for each,
// so that they can be told apart when they are executed.
func (m *Manager) deniedProgram(c *state.Cell, rule, target string) (string, error) {
	dir := filepath.Join(m.folder(c.ID), "denied")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	at := filepath.Join(dir, cell.Sum([]byte(rule+"\x00"+target)).Short())
	text := "#!/bin/sh\necho \"pando: $0: \"" + shellQuoted(rule+" denies executing it") + " >&2\nexit 126\n"
	if old, err := os.ReadFile(at); err == nil && string(old) == text {
		return at, nil
	}
	if err := os.WriteFile(at, []byte(text), 0o755); err != nil {
		return "", err
	}
	return at, os.Chmod(at, 0o755)
}

func shellQuoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// searchPath is where programs are looked for by name: PATH, and where they
// are on every system.
func searchPath(env []string) (dirs []string) {
	add := func(list string) {
		for _, d := range strings.Split(list, ":") {
			if path.IsAbs(d) && !slices.Contains(dirs, path.Clean(d)) {
				dirs = append(dirs, path.Clean(d))
			}
		}
	}
	for _, kv := range env {
		if p, ok := strings.CutPrefix(kv, "PATH="); ok {
			add(p)
		}
	}
	add("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	return dirs
}

// foundProgram is a program of the cell that a pattern means; why says why it
// can't be covered.
type foundProgram struct{ at, why string }

// programs finds what a pattern means among the host's files that a cell sees.
func programs(mounts []cell.Mount, pattern string, dirs []string) (out []foundProgram, err error) {
	name := path.Base(pattern)
	if strings.Contains(pattern, "/") {
		dirs = []string{path.Dir(pattern)}
	}
	for _, dir := range dirs {
		in, disk, ok := OnHost(mounts, dir)
		if !ok {
			continue
		}
		names := []string{name}
		if strings.Contains(name, "*") {
			entries, err := os.ReadDir(disk)
			if err != nil {
				continue
			}
			names = nil
			for _, e := range entries {
				if decide.MatchProgram(name, e.Name()) {
					names = append(names, e.Name())
				}
			}
		}
		for _, n := range names {
			st, err := os.Lstat(filepath.Join(disk, n))
			switch {
			case errors.Is(err, fs.ErrNotExist):
				continue
			case err != nil:
				return nil, err
			}
			f := foundProgram{at: path.Join(in, n)}
			if st.Mode()&fs.ModeSymlink != 0 {
				f = behindLink(mounts, f.at, filepath.Join(disk, n), name)
			} else if !st.Mode().IsRegular() {
				continue
			}
			if f.at != "" && !slices.Contains(out, f) {
				out = append(out, f)
			}
		}
	}
	return out, nil
}

// behindLink is the program that a symlink leads to, if it goes by the name
// too. Else covering it would take away what has other names, such as busybox.
func behindLink(mounts []cell.Mount, at, disk, name string) foundProgram {
	real, err := filepath.EvalSymlinks(disk)
	root := image.RootOf(mounts)
	if root != "/" {
		real = image.Inside(root, at)
		_, err = os.Lstat(filepath.Join(root, real))
	}
	if err != nil {
		return foundProgram{} // it leads nowhere
	}
	if !decide.MatchProgram(name, filepath.Base(real)) {
		return foundProgram{at, "it is a symlink to " + real + ", which has other names too; deny that"}
	}
	in, there, ok := OnHost(mounts, real)
	if !ok || there != filepath.Join(root, real) {
		return foundProgram{at, "it is a symlink to what the cell has elsewhere"}
	}
	return foundProgram{at: in}
}

// OnHost is the path that a path of the cell really is, after the symlinks that
// its mounts make, and where that lies on the host; false for what is the
// cell's own.
func OnHost(mounts []cell.Mount, p string) (in, disk string, ok bool) {
	for range 8 {
		var best *cell.Mount
		for i := range mounts {
			m := &mounts[i]
			if (m.Target == p || strings.HasPrefix(p, strings.TrimSuffix(m.Target, "/")+"/")) && (best == nil || len(m.Target) >= len(best.Target)) {
				best = m
			}
		}
		if best == nil {
			return "", "", false
		}
		rest := strings.TrimPrefix(p, best.Target)
		switch best.Kind {
		case cell.Link:
			to := best.Source
			if !path.IsAbs(to) {
				to = path.Join(path.Dir(best.Target), to)
			}
			p = path.Join(to, rest)
		case cell.Bind:
			if best.Role == cell.RoleHome || best.Role == cell.RoleTmp || best.Role == cell.RoleWorkspace {
				return "", "", false
			}
			return p, filepath.Join(best.Source, rest), true
		case cell.Overlay:
			if best.Role != cell.RoleImage {
				return "", "", false
			}
			real, disk := onImage(mounts, best, p)
			if real == p {
				return p, disk, true
			}
			p = real
		default:
			return "", "", false
		}
	}
	return "", "", false
}

// onImage is OnHost for what a cell has of another image.
func onImage(mounts []cell.Mount, m *cell.Mount, p string) (real, disk string) {
	real = image.Inside(image.RootOf(mounts), p)
	return real, path.Join(m.Lower[len(m.Lower)-1], strings.TrimPrefix(real, m.Target))
}
