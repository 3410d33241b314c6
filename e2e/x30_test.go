package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A gitRepo is one kind of repository of the matrix. make builds it; the workspace is
// the folder ws below the test's directory.
type gitRepo struct {
	name, ws, make string
	// worktrees is set where `git worktree list` names folders that a cell does not have.
	worktrees bool
	often     bool // on every change
}

// gitSetUp is what each kind begins with: two commits, a file that is ignored, one that
// the user ignores everywhere, and folders for sparse checkouts.
const gitSetUp = `
git init -q -b trunk main
cd main
mkdir -p a b/c
echo one > f; echo two > a/g; echo three > b/c/h; printf 'x\r\ny\r\n' > crlf.txt; printf 'x\ny\n' > lf.txt
echo '*.log' > .gitignore
printf 'a raw line\n' > big.bin
echo '*.bin filter=lfs diff=lfs merge=lfs -text' > .gitattributes
git add -A
git commit -q -m first
echo more >> f
git commit -q -a -m second
echo again >> a/g
git commit -q -a -m third
git tag v1
cd ..
`

const gitDirty = `
echo ignored > x.log; echo global > x.bak; echo new > untracked
`

var gitRepos = []gitRepo{
	{name: "plain", often: true, ws: "main", make: gitSetUp},
	{name: "shallow", ws: "shallow", make: gitSetUp + `git clone -q --depth 2 file://$PWD/main shallow`},
	{name: "cone", ws: "main", make: gitSetUp + `cd main; git sparse-checkout set --cone a; cd ..`},
	{name: "sparse", ws: "main", make: gitSetUp + `cd main; git sparse-checkout set --no-cone '/*' '!/b/'; cd ..`},
	{name: "sparse-index", ws: "main", make: gitSetUp + `cd main; git sparse-checkout set --cone --sparse-index a; cd ..`},
	{name: "linked", often: true, ws: "tree", worktrees: true, make: gitSetUp + `git -C main worktree add -q ../tree -b side`},
	{name: "has-linked", ws: "main", worktrees: true, make: gitSetUp + `git -C main worktree add -q ../tree -b side`},
	{name: "linked-sparse", ws: "tree", worktrees: true, make: gitSetUp + `git -C main worktree add -q --no-checkout ../tree -b side; cd tree; git sparse-checkout set --cone a; git checkout -q; cd ..`},
	{name: "superproject", ws: "super", make: gitSetUp + `git init -q -b trunk super; cd super; echo s > s; git add s
git -c protocol.file.allow=always submodule --quiet add $TOP/repos/main lib/sub; git commit -q -m super; cd ..`},
	{name: "submodule", often: true, ws: "super/lib/sub", worktrees: true, make: gitSetUp + `git init -q -b trunk super; cd super; echo s > s; git add s
git -c protocol.file.allow=always submodule --quiet add $TOP/repos/main lib/sub; git commit -q -m super; git -C lib/sub checkout -q -B trunk; cd ..`},
	{name: "nested", ws: "main", make: gitSetUp + `cp -a main inner; mv inner main/inner`},
	{name: "partial", ws: "partial", make: gitSetUp + `git -C main config uploadpack.allowFilter true; git clone -q --filter=blob:none file://$PWD/main partial; git -C partial log -p >/dev/null`},
	{name: "foreign", ws: "main", make: gitSetUp + `[ $(id -u) != 0 ] || chown -R 65534:65534 main`}, // "dubious ownership", but for the user's safe.directory
	{name: "packed", ws: "main", make: gitSetUp + `cd main; git gc -q; git update-index --index-version 4; cd ..`},
}

// gitSettings are what a user's own configuration says.
var gitSettings = []struct{ name, config string }{
	{"none", ""},
	{"lfs", "[filter \"lfs\"]\n\tclean = sed 's/^/oid /'\n\tsmudge = \"sed 's/^oid //'\"\n\trequired = true\n"},
	{"sign", "[commit]\n\tgpgSign = true\n[tag]\n\tgpgSign = true\n[gpg]\n\tprogram = /nonexistent/gpg\n[user]\n\tsigningKey = ABCDEF\n"},
	{"crlf", "[core]\n\tautocrlf = true\n\tignorecase = true\n"},
	{"input", "[core]\n\tautocrlf = input\n\tsafecrlf = warn\n"},
	{"words", "[core]\n\texcludesFile = ~/.ignored\n\tattributesFile = ~/.attributes\n\tquotePath = false\n[alias]\n\tst = status --short\n[status]\n\tbranch = true\n" +
		"[init]\n\tdefaultBranch = work\n[merge]\n\tconflictStyle = diff3\n[diff]\n\tnoprefix = true\n\trenames = copies\n[log]\n\tdate = iso\n[color]\n\tui = always\n[pull]\n\trebase = true\n"},
}

// gitAsks are what is asked, one after the other. Each changes what the next ones see.
var gitAsks = []string{
	"status", "status --porcelain=v2 --branch --ignored", "diff-index --quiet HEAD --", "diff-files --name-status", "diff --stat", "ls-files -s -t -v",
	"ls-files --others --exclude-standard", "log --format=%H.%an.%ae.%s", "log -1", "branch -a -v", "submodule status", "worktree list", "worktree list --porcelain", "stash list",
	"rev-parse --show-toplevel --is-inside-work-tree --is-shallow-repository", "show --stat", "check-attr -a big.bin a/g", "st",
	"!echo change >> a/g", "status --short", "diff", "diff-files --name-status", "diff-index --name-status HEAD --", "add a/g", "diff --cached", "commit -m fourth",
	"log --format=%H.%s.%G? -2", "!echo stashed >> f", "stash push -m kept", "status --short", "stash list", "stash pop", "add -A", "status", "commit -m fifth",
	"tag -a -m annotated v2", "bisect start HEAD HEAD~2", "bisect good", "bisect log", "bisect reset", "!printf 'z\\r\\n' > new.txt", "add new.txt", "ls-files -s new.txt",
	"!echo other > other.bin", "add other.bin", "cat-file -p :other.bin", "reset -q --hard", "status", "checkout -q -b more HEAD~1", "!cksum crlf.txt lf.txt big.bin",
	"!echo left > f; git commit -qam left; git checkout -q -; echo right > f; git commit -qam right", "merge more", "!cat f", "merge --abort", "fsck --connectivity-only",
	"!git init -q made; cat made/.git/HEAD; rm -rf made", "config --get core.bare",
}

// gitScript asks git everything.
func gitScript() string {
	var b strings.Builder
	b.WriteString("export GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000' LC_ALL=C GIT_PAGER=cat GIT_MERGE_AUTOEDIT=no\n")
	for _, ask := range gitAsks {
		sh, plain := strings.CutPrefix(ask, "!")
		if !plain {
			sh = "git " + sh
		}
		fmt.Fprintf(&b, "echo '=@='\ncat <<'Q'\n%s\nQ\n( %s ) 2>&1; echo \"-> $?\"\n", ask, sh)
	}
	return b.String()
}

// gitAnswers takes the output of gitScript apart.
var lineEndsWarning = regexp.MustCompile(`(?m)^warning: in the working copy of '.*', LF will be replaced by CRLF.*\n`)

func gitAnswers(out string) map[string]string {
	all := map[string]string{}
	for i, part := range strings.Split(out, "=@=\n")[1:] {
		ask, answer, _ := strings.Cut(part, "\n")
		// Git prints warnings for the files that it reads, and which it reads depends on
		// whether they were changed in the same second as the index.
		all[fmt.Sprintf("%02d %s", i, ask)] = lineEndsWarning.ReplaceAllString(answer, "")
	}
	return all
}

// TestX30GitSaysTheSame asks git the same in a cell and on the host, in each kind of
// repository with each kind of user's configuration.
func TestX30GitSaysTheSame(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git")
	}
	for i, r := range gitRepos {
		for j, s := range gitSettings {
			if (!r.often || (i+j)%len(gitSettings) != 0) && os.Getenv("E2E_SOAK") == "" {
				continue // some repositories, each with a setting of its own
			}
			t.Run(r.name+"/"+s.name, func(t *testing.T) { gitSaysTheSame(t, r, s.config) })
		}
	}
}

func gitSaysTheSame(t *testing.T, r gitRepo, config string) {
	t.Parallel()
	h := newHost(t)
	for i, v := range h.env { // the author of commits comes from the user's configuration
		if strings.HasPrefix(v, "GIT_AUTHOR_") || strings.HasPrefix(v, "GIT_COMMITTER_") {
			h.env[i] = "UNUSED=" + v[:3]
		}
	}
	home := filepath.Join(h.work, "home")
	const signs = "GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=commit.gpgsign GIT_CONFIG_VALUE_0=false GIT_CONFIG_KEY_1=tag.gpgsign GIT_CONFIG_VALUE_1=false "
	h.writeAt(filepath.Join(home, ".gitconfig"), "[user]\n\tname = Ada\n\temail = ada@example.com\n[safe]\n\tdirectory = *\n"+config)
	h.writeAt(filepath.Join(home, ".ignored"), "*.bak\n")
	h.writeAt(filepath.Join(home, ".attributes"), "*.txt whitespace=cr-at-eol\n")
	repos := filepath.Join(h.work, "repos")
	h.must(os.Mkdir(repos, 0o755))
	h.src = repos
	h.sh("export TOP=" + h.work + " GIT_COMMITTER_DATE='1700000000 +0000' GIT_AUTHOR_DATE='1700000000 +0000' " + signs + "\n" + r.make)
	h.src = filepath.Join(repos, r.ws)
	h.sh(gitDirty)
	h.sh("git status >/dev/null") // the index is fresh
	before := describeDir(t, repos)
	o := h.try("run", "--cell", "c", "--", "sh", "-c", gitScript())
	inside := gitAnswers(o.out)
	if len(inside) != len(gitAsks) {
		t.Fatalf("%d answers of %d: %s%s", len(inside), len(gitAsks), o.out, o.stderr)
	}
	if after := describeDir(t, repos); after != before {
		t.Errorf("the host's repositories were touched:\n%s\nbecame\n%s", before, after)
	}
	outside := gitAnswers(h.exec(h.cmd("sh", "-c", "export "+signs+"; "+gitScript())).out)
	if len(outside) != len(gitAsks) {
		t.Fatalf("the host gave %d answers", len(outside))
	}
	for ask, want := range outside {
		got := inside[ask]
		if r.worktrees && (strings.Contains(ask, "worktree list") || strings.HasSuffix(ask, " branch -a -v")) { // the other worktrees are not in the cell
			if !strings.Contains(got, "-> 0\n") || strings.Contains(ask, "list") && !strings.Contains(got, h.src) {
				t.Errorf("git %s: %s", ask, got)
			}
			continue
		}
		if got != want {
			t.Errorf("git %s: inside\n%s\noutside\n%s", ask, got, want)
		}
	}
}
