package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// project returns a real Go project: one that pando itself is built with, as
// it lies in the module cache, or wherever E2E_PROJECT has a copy.
func project(t *testing.T) string {
	if p := os.Getenv("E2E_PROJECT"); p != "" {
		return p
	}
	for _, prog := range []string{"go", "git"} {
		if _, err := exec.LookPath(prog); err != nil {
			t.Skip("needs " + prog)
		}
	}
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/spf13/pflag").Output()
	dir := strings.TrimSpace(string(out))
	if _, serr := os.Stat(dir); err != nil || dir == "" || serr != nil {
		t.Skip("needs a Go project: E2E_PROJECT, or github.com/spf13/pflag in the module cache")
	}
	return dir
}

// A day of work on a real project: its own tests run in a cell; a run edits ten files and breaks
// a test, and is undone and kept; another run fixes something, and exactly that arrives in the
// source.
func TestRealProject(t *testing.T) {
	t.Parallel()
	dir := project(t)
	h := newHost(t)
	h.env = append(h.env, "HOME="+os.Getenv("HOME"), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOTOOLCHAIN=local")                                              // with the caches of the tester
	h.sh(`cp -R "` + dir + `/." . && chmod -R u+w . && rm -rf .git && git init -q . && git add -A && git commit -q -m project && go test -vet=off ./...`) // as during development: the build cache is warm
	clean := func() {
		t.Helper()
		if got := h.sh("git status --porcelain; git stash list; git diff"); got != "" {
			t.Fatalf("the source changed:\n%s", got)
		}
	}

	// Its own tests.
	o := h.exits(0, "run", "--cell", "work", "--", "go", "test", "-vet=off", "./...")
	if !strings.Contains(o.out, "ok  \tgithub.com/spf13/pflag") {
		t.Fatalf("its tests did not run:\n%s%s", o.out, o.stderr)
	}
	clean()

	// Ten files and a broken test.
	h.writeAt(filepath.Join(h.work, "edit.sh"), `set -e
for f in $(ls *.go | grep -v _test.go | head -10); do echo "// edited" >> $f; done
sed -i 's/= stringValue(val)$/= stringValue(val + "!")/' string.go
rm LICENSE
go test -vet=off ./...
`)
	script := h.readAt(filepath.Join(h.work, "edit.sh"))
	o = h.exits(1, "run", "--cell", "work", "--", "sh", "-c", script)
	if !strings.Contains(o.out, "--- FAIL: ") || !strings.Contains(o.stderr, "restored; the result is kept as work@") {
		t.Fatalf("the broken test: %s%s", o.out, o.stderr)
	}
	failed := h.run("work:latest")
	if failed.Verdict != "restored" || failed.After == nil {
		t.Fatalf("the run is %s, after %v", failed.Verdict, failed.After)
	}
	clean()
	if got := h.inCell("work", "git status --porcelain; grep -l '// edited' *.go; ls LICENSE"); got != "LICENSE\n" {
		t.Errorf("the cell was not restored:\n%s", got)
	}

	// And had back.
	kept := strconv.Itoa(failed.After.Number)
	h.pando("restore", "work@"+kept, "--yes")
	if got := h.inCell("work", "grep -l '// edited' *.go | wc -l; git status --porcelain | grep -c LICENSE; test -e LICENSE || echo gone"); strings.Fields(got)[0] != "10" || !strings.HasSuffix(got, "1\ngone\n") {
		t.Errorf("the kept result is not what was made:\n%s", got)
	}
	h.exits(1, "run", "--cell", "work", "--", "go", "test", "-vet=off", "./...")
	clean()

	// Another cell fixes something, and it is taken.
	h.writeAt(filepath.Join(h.work, "fix.sh"), `set -e
printf 'package pflag\n\nimport "testing"\n\nfunc TestFixed(t *testing.T) {\n\tif got := newStringValue("a", new(string)).String(); got != "a" {\n\t\tt.Error(got)\n\t}\n}\n' > fixed_test.go
sed -i '1s/^/\/\/ Fixed.\n\n/' string.go
git mv golangflag.go goflag.go
chmod +x flag.go
go test -vet=off ./...
git add -A
git diff --cached HEAD
`)
	o = h.exits(0, "run", "--cell", "fix", "--", "sh", "-c", h.readAt(filepath.Join(h.work, "fix.sh")))
	_, inside, ok := strings.Cut(o.out, "diff --git ")
	if !ok {
		t.Fatalf("no diff:\n%s", o.out)
	}
	clean()
	h.pando("accept", "fix", "--apply")
	if got := h.sh("git diff --cached"); got != "" {
		t.Errorf("the index of the source changed:\n%s", got)
	}
	got := h.sh("cp -R .git ../copy.git; export GIT_DIR=../copy.git GIT_WORK_TREE=.; git add -A; git diff --cached HEAD")
	if got != "diff --git "+inside {
		t.Errorf("the source differs by:\n%s\nbut the cell by:\ndiff --git %s", got, inside)
	}
	for _, want := range []string{"new file mode 100644\n", "rename to goflag.go\n", "new mode 100755\n", "+// Fixed.\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("the difference has no %q", want)
		}
	}
	if v := h.verify(); !v.OK {
		t.Errorf("the ledger does not verify: %+v", v)
	}
	h.pando("rm", "work", "fix", "--yes")
	if left := h.leftovers(); len(left) > 0 {
		t.Errorf("left over: %s", strings.Join(left, "; "))
	}
}
