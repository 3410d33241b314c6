package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
)

// TestAfternoon is an afternoon's work on real histories (tools/histories), at three places of each: in a cell an agent commits
// thrice, what the project really did next. Half of the files are taken and committed, the source moves on, one more file is
// merged, the rest is discarded. What git says of the source after each step is held against git's own answer.
func TestAfternoon(t *testing.T) {
	dir := os.Getenv("E2E_HISTORIES")
	if dir == "" {
		t.Skip("needs E2E_HISTORIES: the directory that tools/histories filled")
	}
	repos, err := filepath.Glob(filepath.Join(dir, "*", ".git"))
	must(t, err)
	if len(repos) == 0 {
		t.Fatalf("there is no repository in %s", dir)
	}
	for _, repo := range repos {
		repo = filepath.Dir(repo)
		for place := range 3 {
			t.Run(fmt.Sprint(filepath.Base(repo), place), func(t *testing.T) { afternoon(t, repo, place) })
		}
	}
}

func afternoon(t *testing.T, repo string, place int) {
	h := newHost(t)
	git := func(args ...string) string {
		t.Helper()
		for i, a := range args {
			args[i] = quoted(a)
		}
		return strings.TrimRight(h.sh("git "+strings.Join(args, " ")), "\n")
	}
	lines := func(s string) []string { return strings.FieldsFunc(s, func(r rune) bool { return r == '\n' }) }

	h.must(os.MkdirAll(h.src, 0o755))
	h.sh("find . -mindepth 1 -delete && git clone -q " + repo + " .")
	git("config", "user.name", "me")
	git("config", "user.email", "me@example.com")
	all := lines(git("log", "--reverse", "--first-parent", "--no-merges", "--format=%H"))
	at := (len(all) - 4) * (place + 1) / 3
	begin, end := all[at], all[at+3]
	git("branch", "upstream", end)
	git("reset", "-q", "--hard", begin)

	// The agent.
	h.pando("run", "--cell", "w", "--", "sh", "-c", "git -c user.name=agent -c user.email=a@example.com cherry-pick --allow-empty "+strings.Join(all[at+1:at+4], " ")+" >/dev/null")
	if now := git("rev-parse", "HEAD"); now != begin || git("status", "--porcelain") != "" {
		t.Fatalf("the source is at %s, with %s", now, git("status", "--porcelain"))
	}
	h.pando("fetch", "w")
	if got, want := git("log", "--format=%s%n%b", "HEAD..pando/w/main"), git("log", "--format=%s%n%b", begin+".."+end); got != want {
		t.Errorf("fetched commits say %q, want %q", got, want)
	}
	if git("diff", "--no-renames", "pando/w/main", end) != "" {
		t.Errorf("the fetched branch differs from %s", end)
	}

	// Half of it is taken.
	dry := decoded[api.AcceptResult](h, "accept", "w", "--apply", "--dry-run")
	held := map[string]bool{}
	for _, x := range dry.Held {
		held[x.Path] = true
	}
	var half, rest []string
	for i, p := range strings.FieldsFunc(git("diff", "--no-renames", "--name-only", "-z", begin, end), func(r rune) bool { return r == 0 }) {
		switch {
		case held[p]:
		case i%2 == 0:
			half = append(half, p)
		default:
			rest = append(rest, p)
		}
	}
	if len(half) == 0 {
		t.Fatal("nothing that can be taken was changed here: choose another place")
	}
	var taken api.AcceptResult
	h.must(json.Unmarshal([]byte(h.pando(append([]string{"accept", "w", "--apply", "--json", "--"}, half...)...)), &taken))
	if slices.Sort(taken.Applied); !slices.Equal(taken.Applied, half) {
		t.Errorf("taken: %q, of %q", taken.Applied, half)
	}
	git("add", "-A", "-f")
	got, want := git("diff", "--no-renames", "--cached", "--binary"), git(append([]string{"diff", "--no-renames", "--binary", begin, end, "--"}, half...)...)
	if got != want {
		t.Errorf("half of it is in the source as\n%s\nwant\n%s", got, want)
	}
	git("commit", "-qm", "half of it")

	// The source moves on, in a file that the agent changed, too.
	subjects := []string{"half of it"}
	var both string
	for _, p := range rest {
		if git("diff", "--no-renames", "--diff-filter=M", "--numstat", begin, end, "--", p) != "" && !strings.HasPrefix(git("diff", "--numstat", begin, end, "--", p), "-") {
			both = p
			break
		}
	}
	if both != "" {
		h.sh("echo 'a line of mine' >>" + quoted(both))
		git("commit", "-qam", "mine")
		h.sh(fmt.Sprintf("git show %s:%[2]s >../base && git show HEAD:%[2]s >../ours && git show %[3]s:%[2]s >../theirs", begin, quoted(both), end))
		merged := h.try("accept", "w", "--apply", "--merge", "--", both)
		want := h.sh("git merge-file -p ../ours ../base ../theirs || true")
		if conflict := strings.Contains(want, "<<<<<<<"); conflict != (merged.code != 0) || conflict != strings.Contains(h.read(both), "<<<<<<<") {
			t.Errorf("git's merge has a conflict: %v; pando's ended with %d: %s", conflict, merged.code, merged.stderr)
		} else if !conflict && h.read(both) != want {
			t.Errorf("%s was merged to\n%s\nwant\n%s", both, h.read(both), want)
		}
		if got := git("status", "--porcelain"); got != " M "+both && got != ` M "`+both+`"` {
			t.Errorf("after the merge git says %q", got)
		}
		git("commit", "-qam", "merged")
		subjects = append(subjects, "mine", "merged")
	}

	// The rest is discarded.
	before := git("rev-parse", "HEAD")
	if len(rest) > 1 || len(held) > 0 {
		h.pando("discard", "w", "--yes")
	}
	if now := git("rev-parse", "HEAD"); now != before || git("status", "--porcelain") != "" {
		t.Errorf("a discard changed the source: %s, %s", now, git("status", "--porcelain"))
	}
	slices.Reverse(subjects)
	if got := lines(git("log", "--format=%s", begin+"..HEAD")); !slices.Equal(got, subjects) {
		t.Errorf("git log says %q, want %q", got, subjects)
	}
	if d := decoded[api.Diff](h, "diff", "w"); len(d.Files) > 0 {
		t.Errorf("after the discard the cell still differs in %+v", d.Files)
	}
	if v := h.verify(); len(v.Problems) > 0 {
		t.Errorf("the receipts: %+v", v.Problems)
	}
	t.Logf("%d files of %d taken, merged: %q, %d held back", len(half), len(half)+len(rest), both, len(held))
}

// quoted is a word of a shell.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
