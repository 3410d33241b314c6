package apply

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// repository is what makes a folder a git repository with that configuration.
func repository(dir, config string) wt.Model {
	dot := strings.TrimPrefix(dir+"/.git", "/")
	return wt.Model{dot + "/HEAD": wt.Plain("ref: refs/heads/main\n"), dot + "/objects": wt.Thing{Folder: true}, dot + "/refs": wt.Thing{Folder: true}, dot + "/config": wt.Plain(config)}
}

// A namedCase is configuration on the host, and whether it makes changes of
// paths of the source control paths.
type namedCase struct {
	host  wt.Model // beside the source: src is the source, home a home
	base  wt.Model // of the source, as the cell got it
	links wt.Model // made by the cell
	held  string   // paths
	free  string
}

func (c namedCase) check(t *testing.T) {
	t.Helper()
	root := t.TempDir()
	c.host.Write(t, root)
	source, home := filepath.Join(root, "src"), filepath.Join(root, "home")
	base := wt.Model{"README": wt.Plain("1")}
	maps.Copy(base, c.base)
	for p, f := range c.host {
		if rel, ok := strings.CutPrefix(p, "src/"); ok && !strings.Contains(p, ".git/") {
			base[rel] = f
		}
	}
	base.Write(t, source)
	for p, f := range c.host { // paths of this machine, which only here are known
		if strings.Contains(f.Text, "SRC") {
			if err := os.WriteFile(filepath.Join(root, p), []byte(strings.ReplaceAll(f.Text, "SRC", source)), 0o644); err != nil {
				t.Fatal(err)
			}
			if rel, ok := strings.CutPrefix(p, "src/"); ok {
				if _, known := base[rel]; known {
					base[rel] = wt.Plain(strings.ReplaceAll(f.Text, "SRC", source))
				}
			}
		}
	}
	after := base
	for p, f := range c.links {
		after = after.With(p, f)
	}
	for _, p := range strings.Fields(c.held + " " + c.free) {
		if after[p].Link == "" {
			after = after.With(p, wt.Script("new "+p))
		}
	}
	req := applyRequest(t, source, base, after)
	req.Homes, req.GitConfigs, req.DryRun = []string{home}, []string{filepath.Join(home, "extra")}, true
	res, err := doOne(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	held := map[string]string{}
	for _, h := range res.Held {
		held[h.Path] = h.Why
	}
	for _, p := range strings.Fields(c.held) {
		if held[p] == "" {
			t.Errorf("%s is not held back", p)
		}
	}
	for _, p := range strings.Fields(c.free) {
		if held[p] != "" {
			t.Errorf("%s is held back: %s", p, held[p])
		}
	}
}

// X5: whatever value of git's configuration names a path of the source makes
// it a control path.
func TestX05GitConfigurationNamesControlPaths(t *testing.T) {
	for name, c := range map[string]struct{ config, held, free string }{
		"fsmonitor":        {"[core]\n\tfsmonitor = tools/fsm", "tools/fsm", "tools/other"},
		"fsmonitor-dot":    {"[core]\n\tfsmonitor = ./fsm --x", "fsm", "sub/fsm"},
		"case":             {"[CORE]\n\tFSMonitor = Tools/FSM", "tools/fsm", "tools/other"},
		"absolute":         {"[core]\n\tfsmonitor = SRC/tools/fsm", "tools/fsm", "fsm"},
		"bool":             {"[core]\n\tfsmonitor = true", "", "true"},
		"hooksPath":        {"[core]\n\thooksPath = tools/h", "tools/h/pre-commit tools/h/lib/x", "tools/x"},
		"hooksPath-bare":   {"[core]\n\thooksPath = h", "h/pre-commit", "x"},
		"hooksPath-all":    {"[core]\n\thooksPath = .", "pre-commit sub/x", ""},
		"clean":            {"[filter \"f\"]\n\tclean = sh filters/clean.sh %f", "filters/clean.sh", "filters/x"},
		"smudge":           {"[filter \"f\"]\n\tsmudge = \"python3 \\\"filters/my smudge.py\\\" %f\"", "", "filters/x"},
		"process":          {"[filter \"f\"]\n\tprocess = node filter.js", "filter.js", "x.js"},
		"process-bare":     {"[filter \"f\"]\n\tprocess = node server", "server/index.js", "node/x"},
		"external":         {"[diff]\n\texternal = tools/d", "tools/d", "tools/e"},
		"command":          {"[diff \"x.y\"]\n\tcommand = tools/d", "tools/d", ""},
		"textconv":         {"[diff \"x\"]\n\ttextconv = exec tools/conv", "tools/conv", ""},
		"driver":           {"[merge \"x\"]\n\tdriver = tools/m %O %A %B", "tools/m", ""},
		"mergetool":        {"[mergetool \"x\"]\n\tcmd = FOO=1 tools/m \\\"$LOCAL\\\"", "tools/m", ""},
		"mergetool-path":   {"[mergetool \"x\"]\n\tpath = tools/m", "tools/m", ""},
		"sshCommand":       {"[core]\n\tsshCommand = ssh -F conf/ssh -i keys/id -oProxyCommand=tools/p", "conf/ssh keys/id tools/p", "conf/x"},
		"sshCommand-glued": {"[core]\n\tsshCommand = ssh -Fconf/ssh", "conf/ssh", ""},
		"editor":           {"[core]\n\teditor = vim -S tools/e.vim", "tools/e.vim", ""},
		"sequence":         {"[sequence]\n\teditor = ./seq", "seq", ""},
		"pager":            {"[pager]\n\tlog = tools/p | less", "tools/p", ""},
		"pipe":             {"[core]\n\tpager = \"less | tools/p && (tools/q; `tools/r`) > out\"", "tools/p tools/q tools/r", ""},
		"nested-shell":     {"[core]\n\tpager = sh -c 'bash -c \\\"tools/p x\\\"'", "tools/p", ""},
		"alias":            {"[alias]\n\tst = !tools/a", "tools/a", ""},
		"alias-toplevel":   {"[alias]\n\tst = \"!f() { $(git rev-parse --show-toplevel)/tools/a; }; f\"", "tools/a sub/tools/a", "tools/b"},
		"alias-git":        {"[alias]\n\tst = status -s", "", "status"},
		"credential":       {"[credential]\n\thelper = SRC/tools/cred", "tools/cred", ""},
		"credential-url":   {"[credential \"https://x.example\"]\n\thelper = !tools/cred", "tools/cred", ""},
		"credential-store": {"[credential]\n\thelper = store --file=conf/creds", "conf/creds", ""},
		"gpg":              {"[gpg]\n\tprogram = tools/gpg", "tools/gpg", ""},
		"gpg-ssh":          {"[gpg \"ssh\"]\n\tallowedSignersFile = conf/signers\n\tdefaultKeyCommand = tools/key", "conf/signers tools/key", ""},
		"attributes":       {"[core]\n\tattributesFile = attrs", "attrs", "attr"},
		"excludes":         {"[core]\n\texcludesFile = conf/ignore", "conf/ignore", ""},
		"include":          {"[include]\n\tpath = ../conf/git", "conf/git", "conf/x"},
		"includeIf":        {"[includeIf \"onbranch:x/**\"]\n\tpath = ../conf/git", "conf/git", "conf/x"},
		"template":         {"[commit]\n\ttemplate = conf/template", "conf/template", ""},
		"templateDir":      {"[init]\n\ttemplateDir = conf/t", "conf/t/hooks/x", ""},
		"browser":          {"[web]\n\tbrowser = x\n[browser \"x\"]\n\tcmd = tools/b", "tools/b", ""},
		"trailer":          {"[trailer \"x\"]\n\tcmd = tools/t", "tools/t", ""},
		"remote-ext":       {"[remote \"o\"]\n\turl = ext::tools/r %S", "tools/r", ""},
		"remote-path":      {"[remote \"o\"]\n\turl = vendor/repo", "vendor/repo/config", ""},
		"remote-pack":      {"[remote \"o\"]\n\tuploadpack = tools/u", "tools/u", ""},
		"remote-url":       {"[remote \"o\"]\n\turl = git@host.example:vendor/repo", "", "vendor/repo"},
		"insteadOf":        {"[url \"ext::tools/r \"]\n\tinsteadOf = https://", "tools/r", ""},
		"submodule":        {"[submodule \"x\"]\n\tupdate = !tools/s", "tools/s", ""},
		"blame":            {"[blame]\n\tignoreRevsFile = conf/revs", "conf/revs", ""},
		"mailmap":          {"[mailmap]\n\tfile = conf/mailmap", "conf/mailmap", ""},
		"lfs":              {"[lfs \"customtransfer.x\"]\n\tpath = tools/lfs\n\targs = conf/lfs", "tools/lfs conf/lfs", ""},
		"not-known-yet":    {"[future \"x\"]\n\tthing = tools/f", "tools/f", ""},
		"hook-by-config":   {"[hook \"x\"]\n\tcommand = tools/h\n\tevent = pre-commit", "tools/h", ""},
		"broken-before":    {"[core]\n\tx y\n\tfsmonitor = tools/fsm", "tools/fsm", ""},
		"bom":              {"\xef\xbb\xbf[core]\n\tfsmonitor = tools/fsm", "tools/fsm", ""},
		"old-subsection":   {"[diff.x]\n\ttextconv = tools/conv", "tools/conv", ""},
		"continued":        {"[core]\n\tfsmonitor = tools/\\\nfsm", "tools/fsm", ""},
		"branch":           {"[branch \"tools/x\"]\n\tremote = origin\n\tmerge = refs/heads/tools/x", "", "tools/x"},
		"user":             {"[user]\n\tname = Ann\n\temail = ann@x.example", "", "Ann ann"},
		"home":             {"[core]\n\tfsmonitor = ~/../src/tools/fsm\n[diff]\n\texternal = $HOME/../src/tools/d", "tools/fsm tools/d", ""},
		"symlink-way":      {"[core]\n\tfsmonitor = link/fsm", "dir/fsm link dir2/fsm", "dir/other dir2/other"},
	} {
		t.Run(name, func(t *testing.T) {
			c2 := namedCase{host: repository("src", c.config), held: c.held, free: c.free}
			if name == "symlink-way" {
				c2.base = wt.Model{"link": wt.Link("dir"), "dir/x": wt.Plain("1")}
				c2.links = wt.Model{"link": wt.Link("dir2")}
			}
			c2.check(t)
		})
	}
}

// X5: the same from every place that git reads configuration from.
func TestX05EveryPlaceOfGitConfiguration(t *testing.T) {
	const fsm = "[core]\n\tfsmonitor = tools/fsm"
	with := func(m wt.Model, more wt.Model) wt.Model {
		maps.Copy(m, more)
		return m
	}
	for name, c := range map[string]namedCase{
		"home":         {host: with(repository("src", ""), wt.Model{"home/.gitconfig": wt.Plain(fsm)})},
		"xdg":          {host: with(repository("src", ""), wt.Model{"home/.config/git/config": wt.Plain(fsm)})},
		"environment":  {host: with(repository("src", ""), wt.Model{"home/extra": wt.Plain(fsm)})},
		"home-include": {host: with(repository("src", ""), wt.Model{"home/.gitconfig": wt.Plain("[includeIf \"gitdir:~/never/\"]\n\tpath = more/a"), "home/more/a": wt.Plain("[include]\n\tpath = b"), "home/more/b": wt.Plain(fsm)})},
		"cycle":        {host: with(repository("src", ""), wt.Model{"home/.gitconfig": wt.Plain("[include]\n\tpath = .gitconfig\n" + fsm)})},
		"in-source":    {host: with(repository("src", "[include]\n\tpath = ../conf/git"), wt.Model{"src/conf/git": wt.Plain(fsm)}), held: "conf/git"},
		"worktree":     {host: with(repository("src", ""), wt.Model{"src/.git/config.worktree": wt.Plain(fsm)})},
		"worktrees":    {host: with(repository("src", ""), wt.Model{"src/.git/worktrees/w/config.worktree": wt.Plain(fsm)})},
		"submodule": {host: with(repository("src", ""), wt.Model{"src/.git/modules/a/b/HEAD": wt.Plain("ref: refs/heads/main\n"), "src/.git/modules/a/b/objects": wt.Thing{Folder: true},
			"src/.git/modules/a/b/refs": wt.Thing{Folder: true}, "src/.git/modules/a/b/config": wt.Plain(fsm)})},
		"nested":       {host: with(repository("src", ""), repository("src/sub", fsm)), base: with(repository("sub", fsm), wt.Model{"sub/x": wt.Plain("1")}), held: "sub/tools/fsm"},
		"linked":       {host: with(repository("main", fsm), wt.Model{"src/.git": wt.Plain("gitdir: ../main/.git/worktrees/w\n"), "main/.git/worktrees/w/HEAD": wt.Plain("ref: refs/heads/w\n"), "main/.git/worktrees/w/commondir": wt.Plain("../..\n")}), base: wt.Model{".git": wt.Plain("gitdir: ../main/.git/worktrees/w\n")}},
		"above":        {host: repository("", "[core]\n\tfsmonitor = src/tools/fsm")},
		"format":       {host: repository("src", "[extensions]\n\tobjectFormat = blake3\n"+fsm)},
		"hook-symlink": {host: with(repository("src", ""), wt.Model{"src/.git/hooks/pre-commit": wt.Link("../../tools/fsm")})},
		"hook-names":   {host: with(repository("src", ""), wt.Model{"src/.git/hooks/pre-commit": wt.Script("#!/bin/sh\n# docs/free\nexec ./tools/fsm \"$@\"\n")}), free: "docs/free"},
		"hooks-folder": {host: with(repository("src", ""), wt.Model{"src/.git/hooks": wt.Link("../tools")})},
		"new-symlink":  {host: repository("src", fsm), links: wt.Model{"tools": wt.Link("other")}, held: "tools other/fsm", free: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(c.held, "tools") && name != "hook" {
				c.held += " tools/fsm"
			}
			c.free += " tools2/fsm"
			c.check(t)
		})
	}
}
