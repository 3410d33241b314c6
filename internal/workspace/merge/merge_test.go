package merge

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/testenv"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// lines is a text of twelve lines in which some are other ones.
func lines(other map[int]string) string {
	var b strings.Builder
	for i, w := range []string{"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"} {
		if o, ok := other[i]; ok {
			w = o
		}
		b.WriteString("line " + w + "\n")
	}
	return b.String()
}

// edits are what a side does to the file "f" of a workspace that has it and "keep".
var edits = []struct {
	name string
	do   func(m wt.Model, side string)
}{
	{"top", func(m wt.Model, _ string) { m["f"] = wt.Plain(lines(map[int]string{0: "changed"})) }},
	{"end", func(m wt.Model, _ string) { m["f"] = wt.Plain(lines(map[int]string{11: "changed"})) }},
	{"middle", func(m wt.Model, side string) { m["f"] = wt.Plain(lines(map[int]string{5: "changed by " + side})) }},
	{"more", func(m wt.Model, side string) { m["f"] = wt.Plain(lines(nil) + "added by " + side) }},
	{"mode", func(m wt.Model, _ string) { m["f"] = wt.Script(lines(nil)) }},
	{"crlf", func(m wt.Model, _ string) { m["f"] = wt.Plain(strings.ReplaceAll(lines(nil), "\n", "\r\n")) }},
	{"gone", func(m wt.Model, _ string) { delete(m, "f") }},
	{"renamed", func(m wt.Model, _ string) { m["r"] = m["f"]; delete(m, "f") }},
	{"renamed by side", func(m wt.Model, side string) { m["r-"+side] = m["f"]; delete(m, "f") }},
	{"renamed and changed", func(m wt.Model, _ string) { m["r"] = wt.Plain(lines(map[int]string{2: "other"})); delete(m, "f") }},
	{"binary", func(m wt.Model, side string) { m["f"] = wt.Plain("\x00" + side) }},
	{"symlink", func(m wt.Model, side string) { m["f"] = wt.Link("keep-" + side) }},
	{"new", func(m wt.Model, side string) { m["r"] = wt.Plain("new\nby " + side + "\nfile\n") }},
}

// marks are the lines of a conflict that name the sides: git adds a path where the sides have other ones.
var marks = regexp.MustCompile(`(?m)^(<<<<<<<|>>>>>>>) ([a-zA-Z]+):.*$`)

// Each pair of edits comes out as git merges branches: the same files with the same text, and
// conflicts, or refusals, where git has them.
func TestMatrixAgainstGit(t *testing.T) {
	t.Parallel()
	testenv.Program(t, "git")
	base := wt.Model{"f": wt.Plain(lines(nil)), "keep": wt.Plain("kept\n")}
	repo := t.TempDir()
	wt.Git(t, repo, "init", "-q", "-b", "base")
	commit := func(branch string, m wt.Model) {
		t.Helper()
		wt.Git(t, repo, "checkout", "-q", "-f", "-B", branch, "base")
		for _, p := range []string{"f", "keep", "r", "r-HEAD", "r-theirs"} {
			os.Remove(filepath.Join(repo, p))
		}
		m.Write(t, repo)
		wt.Git(t, repo, "add", "-A")
		wt.Git(t, repo, "commit", "-q", "--allow-empty", "-m", branch)
	}
	wt.Git(t, repo, "commit", "-q", "--allow-empty", "-m", "nothing")
	commit("base", base)
	tried, clean, marked, refused := 0, 0, 0, 0
	for _, ours := range edits {
		for _, theirs := range edits {
			a, b := maps.Clone(base), maps.Clone(base)
			ours.do(a, "HEAD")
			theirs.do(b, "theirs")
			commit("theirs", b)
			commit("ours", a)
			failed := merges(t, repo)
			var want wt.Model
			if !failed {
				want = wt.Read(t, repo)
			}
			raw := map[string]string{}
			for _, p := range []string{"f", "r", "r-HEAD", "r-theirs"} {
				if b, err := os.ReadFile(filepath.Join(repo, p)); err == nil {
					raw[p] = marks.ReplaceAllString(string(b), "$1 $2")
				}
			}
			wt.Git(t, repo, "reset", "-q", "--hard", "ours")
			wt.Git(t, repo, "clean", "-qfd")

			what := "ours " + ours.name + ", theirs " + theirs.name
			got, res := merged(t, base, a, b)
			tried++
			conflicts := 0
			for _, f := range res.Files {
				if conflicts += f.Conflicts; f.Conflicts > 0 && raw[f.Path] != string(f.Content) {
					t.Errorf("%s: %s is\n%s\nand git has\n%s", what, f.Path, f.Content, raw[f.Path])
				}
			}
			switch bad := len(res.Refused) > 0 || conflicts > 0; {
			case bad != failed:
				t.Errorf("%s: %d conflicts, refused %v; git fails: %v", what, conflicts, res.Refused, failed)
			case bad && conflicts > 0:
				marked++
			case bad:
				refused++
			default:
				clean++
				same(t, what, got, want)
			}
		}
	}
	if tried < 60 || clean < 60 || marked < 5 || refused < 40 {
		t.Errorf("of %d merges %d were clean, %d had marks, %d were refused", tried, clean, marked, refused)
	}
}

// merges merges the branch theirs into what is checked out, and reports whether that had conflicts.
func merges(t *testing.T, repo string) bool {
	t.Helper()
	cmd := exec.Command("git", "-c", "user.name=a", "-c", "user.email=a@example.com", "merge", "-q", "--no-edit", "theirs")
	cmd.Dir = repo
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.CombinedOutput()
	if err != nil && !strings.Contains(string(out), "CONFLICT") {
		t.Fatalf("git merge: %v: %s", err, out)
	}
	return err != nil
}

// merged merges two models, and returns what comes of it in the place of ours.
func merged(t *testing.T, base, ours, theirs wt.Model) (wt.Model, *Result) {
	t.Helper()
	objs := wt.NewObjects()
	req := Request{Base: base.Side(t, objs), Ours: ours.Side(t, objs), Theirs: theirs.Side(t, objs), Names: [2]string{"the source", "the cell"}, Labels: [2]string{"HEAD", "theirs"}}
	res, err := Merge(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	out := maps.Clone(ours)
	changes, err := workspace.Changes(req.Base.Tree, req.Theirs.Tree)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		switch {
		case !c.Git():
		case c.New == nil:
			delete(out, c.Path)
		default:
			out[c.Path] = theirs[c.Path]
		}
	}
	for _, f := range res.Files {
		for _, p := range f.Also {
			delete(out, p)
		}
		out[f.Path] = wt.Thing{Text: string(f.Content), Mode: f.Mode}
	}
	return out, res
}

func same(t *testing.T, what string, got, want wt.Model) {
	t.Helper()
	objs := wt.NewObjects()
	var there []string
	for _, p := range want.Paths() {
		if !strings.HasPrefix(p, ".git") {
			there = append(there, p)
		}
	}
	if !slices.Equal(got.Paths(), there) {
		t.Errorf("%s: it has %q, and git %q", what, got.Paths(), there)
		return
	}
	plain := wt.Model{}
	for _, p := range there {
		plain[p] = want[p]
	}
	d, err := diff.Compare(t.Context(), plain.Side(t, objs), got.Side(t, objs), diff.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range d.Files {
		t.Errorf("%s: %s is not as git has it (%s)", what, f.Path, f.Status)
	}
}

// What has no text, or too much of it, is refused by name, and so is what is not wanted left alone.
func TestRefusals(t *testing.T) {
	t.Parallel()
	testenv.Program(t, "git")
	large := strings.Repeat("x\n", MaxFile/2+1)
	base := wt.Model{"large": wt.Plain("x\n"), "f": wt.Plain("1\n"), "g": wt.Plain("1\n")}
	objs := wt.NewObjects()
	req := Request{Base: base.Side(t, objs), Ours: base.With("large", wt.Plain(large)).With("f", wt.Plain("2\n")).With("g", wt.Plain("2\n")).Side(t, objs),
		Theirs: base.With("large", wt.Plain("y\n")).With("f", wt.Plain("3\n")).With("g", wt.Plain("3\n")).Side(t, objs),
		Names:  [2]string{"the source", "the cell"}, Labels: [2]string{"source", "web@2"}, Wanted: func(p string) bool { return p != "g" }}
	res, err := Merge(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Refused) != 1 || res.Refused[0].Path != "large" || !strings.Contains(res.Refused[0].Why, "at most 8 MiB") {
		t.Errorf("refused is %v", res.Refused)
	}
	if len(res.Files) != 1 || res.Files[0].Path != "f" || res.Files[0].Conflicts != 1 || string(res.Files[0].Ours) != "2\n" ||
		string(res.Files[0].Content) != "<<<<<<< source\n2\n=======\n3\n>>>>>>> web@2\n" {
		t.Errorf("merged is %+v", res.Files)
	}
}
