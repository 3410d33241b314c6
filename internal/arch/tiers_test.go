package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// realTime lists the test files of the quick tier that still use the real clock
// outside of a synctest bubble, with the number of places. The list only shrinks:
// testenv.Receive and testenv.Eventually wait for events, synctest.Test injects a clock.
var realTime = map[string]int{
	"client/again_test.go":                    2,
	"internal/archive/manage_test.go":         1,
	"internal/daemon/auth_test.go":            1,
	"internal/daemon/limit_test.go":           1,
	"internal/daemon/idempotency_test.go":     1,
	"internal/daemon/stream_test.go":          1,
	"internal/gateway/fuzz_test.go":           1,
	"internal/gateway/patient_test.go":        1,
	"internal/mcp/mcp_test.go":                1,
	"internal/workspace/import_bench_test.go": 2,
	"internal/workspace/import_test.go":       1,
}

// clocks are the functions of package time that let real time pass.
var clocks = []string{"Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// A verdict of what needs nothing of the host never rests on a clock.
func TestQuickTestsUseNoRealClock(t *testing.T) {
	tiers := readTiers(t)
	found := map[string]int{}
	for _, p := range list(t) {
		if tier := tiers.of(p.ImportPath); tier != "quick" && tier != "plain" {
			continue
		}
		for f, file := range parsed(t, p.Dir, "*_test.go") {
			if n := realClocks(file, tiers.elsewhere(p.ImportPath)); n > 0 {
				found[p.ImportPath+"/"+filepath.Base(f)] = n
			}
		}
	}
	for f, n := range found {
		if n != realTime[f] {
			t.Errorf("%s lets real time pass in %d places (%d are allowed): use testenv.Receive, testenv.Eventually or synctest.Test", f, n, realTime[f])
		}
	}
	for f, n := range realTime {
		if found[f] == 0 {
			t.Errorf("%s uses no real clock any more (%d in the list): remove it from the list", f, n)
		}
	}
}

// A package that is never tested with the race detector has nothing that could race: no
// goroutines and no locks, in its tests neither.
func TestPlainPackagesHaveNothingToRace(t *testing.T) {
	tiers := readTiers(t)
	for _, p := range list(t) {
		if tiers.of(p.ImportPath) != "plain" {
			continue
		}
		for f, file := range parsed(t, p.Dir, "*.go") {
			if what := races(file); what != "" {
				t.Errorf("%s has %s: its package belongs to the tier quick", f, what)
			}
		}
	}
}

// parsed returns the parsed files of a directory that match a pattern, by path.
func parsed(t *testing.T, dir, pattern string) map[string]*ast.File {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*ast.File{}
	for _, f := range files {
		if out[f], err = parser.ParseFile(token.NewFileSet(), f, nil, parser.SkipObjectResolution); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// races names the first thing of a file that lets something run beside it; "" if none.
func races(file *ast.File) (what string) {
	for _, i := range file.Imports {
		switch path, _ := strconv.Unquote(i.Path.Value); path {
		case "sync", "sync/atomic", "golang.org/x/sync/errgroup":
			return "the import " + path
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if _, ok := n.(*ast.GoStmt); ok {
			what = "a goroutine"
		}
		return what == ""
	})
	return what
}

func TestRacesAreFound(t *testing.T) {
	for src, want := range map[string]string{
		"package x\nimport \"sync\"": "the import sync", "package x\nfunc f() { for { go f() } }": "a goroutine", "package x\nfunc f() { f() }": "",
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := races(file); got != want {
			t.Errorf("%q has %q, not %q", src, got, want)
		}
	}
}

func TestRealClocksAreFound(t *testing.T) {
	src := `package x
import ("testing"; "testing/synctest"; "time")
func TestA(t *testing.T) { time.Sleep(1); <-time.After(1) }
func TestB(t *testing.T) { synctest.Test(t, func(t *testing.T) { time.Sleep(1) }) }
func TestC(t *testing.T) { time.Sleep(1) }
func helper() { _ = time.Now(); time.NewTimer(1) }
`
	file, err := parser.ParseFile(token.NewFileSet(), "x_test.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := realClocks(file, []string{"TestC"}); n != 3 {
		t.Errorf("%d places, want the two of TestA and the one of helper", n)
	}
}

// realClocks counts the calls of clocks outside of synctest.Test, but for those in
// functions of other tiers.
func realClocks(file *ast.File, elsewhere []string) (n int) {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && slices.Contains(elsewhere, f.Name.Name) {
			continue
		}
		ast.Inspect(d, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			from, ok := sel.X.(*ast.Ident)
			switch {
			case ok && from.Name == "synctest":
				return false
			case ok && from.Name == "time" && slices.Contains(clocks, sel.Sel.Name):
				n++
			}
			return true
		})
	}
	return n
}

// tiers are the rules of testdata/tiers.txt: tier, package, tests.
type tiers [][3]string

func readTiers(t *testing.T) tiers {
	t.Helper()
	b, err := os.ReadFile("../../testdata/tiers.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all tiers
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) >= 3 && !strings.HasPrefix(f[0], "#") {
			all = append(all, [3]string(f[:3]))
		}
	}
	return all
}

func (all tiers) of(pkg string) string {
	tier := "quick"
	for _, r := range all {
		dir, below := strings.CutSuffix(r[1], "/...")
		if r[2] == "*" && (pkg == dir || below && strings.HasPrefix(pkg, dir+"/")) {
			tier = r[0]
		}
	}
	return tier
}

// elsewhere are the test functions of a package that are in tiers of their own.
func (all tiers) elsewhere(pkg string) (names []string) {
	for _, r := range all {
		if r[1] == pkg && r[2] != "*" && r[0] != "quick" && r[0] != "plain" && !strings.Contains(r[2], "/") {
			names = append(names, r[2])
		}
	}
	return names
}
