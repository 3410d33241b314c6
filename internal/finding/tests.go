package finding

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/pando-dev/pando/api"
)

// A suite is what a file of tests has.
type suite struct {
	tests, skips, asserts int
	names                 []string // of its tests, where the language gives them names
}

// testFile reports whether a file has tests, by the names that are usual.
func testFile(p string) bool {
	base := path.Base(p)
	stem := strings.TrimSuffix(base, path.Ext(base))
	switch path.Ext(base) {
	case ".go":
		return strings.HasSuffix(stem, "_test")
	case ".py":
		return strings.HasPrefix(stem, "test_") || strings.HasSuffix(stem, "_test") || base == "tests.py"
	case ".js", ".jsx", ".ts", ".tsx", ".mjs", ".cjs", ".mts", ".cts":
		return strings.HasSuffix(stem, ".test") || strings.HasSuffix(stem, ".spec") || strings.HasSuffix(stem, "_test") || strings.HasPrefix(base, "test.") || strings.Contains("/"+p, "/__tests__/") || strings.HasPrefix(p, "test/")
	case ".rb":
		return strings.HasSuffix(stem, "_test") || strings.HasSuffix(stem, "_spec")
	case ".rs":
		return strings.HasPrefix(p, "tests/")
	case ".java", ".kt":
		return strings.HasSuffix(stem, "Test") || strings.HasSuffix(stem, "Tests")
	}
	return false
}

// suiteOf counts what a file of tests has. ok is false where that can't be told.
func suiteOf(p string, content []byte) (s suite, ok bool) {
	if !text(content) {
		return s, false
	}
	if path.Ext(p) == ".go" {
		return goSuite(content)
	}
	x := wordsOf(path.Ext(p))
	if x == nil {
		return s, false
	}
	for l := range strings.Lines(string(content)) {
		l = strings.TrimSpace(l)
		if strings.HasPrefix(l, "//") || strings.HasPrefix(l, "#") && !strings.HasPrefix(l, "#[") || strings.HasPrefix(l, "*") {
			continue
		}
		s.tests += len(x.test.FindAllString(l, -1))
		s.skips += len(x.skip.FindAllString(l, -1))
		s.asserts += len(x.assert.FindAllString(l, -1))
	}
	return s, true
}

// testWords are the words of tests in one language.
type testWords struct{ test, skip, assert *regexp.Regexp }

var allTestWords = sync.OnceValue(func() map[string]*testWords {
	words := func(test, skip, assert string) *testWords {
		return &testWords{regexp.MustCompile(test), regexp.MustCompile(skip), regexp.MustCompile(assert)}
	}
	js := words(`(?:^|[^\w.])(?:it|test)(?:\.\w+)*\s*\(`, `(?:^|[^\w.])(?:(?:it|test|describe|suite)\.(?:skip|todo|only)\b|x(?:it|test|describe)\s*\()|\bt\.skip\(`, `\bexpect\s*\(|\bassert(?:\.\w+)?\s*\(|\bt\.(?:is|deepEqual|equal|true|false|throws)\s*\(`)
	py := words(`(?:^|\s)def\s+test\w*\s*\(`, `@(?:pytest\.mark\.(?:skip\b|xfail)|unittest\.(?:skip\b|expectedFailure))`, `^assert\b|\bself\.assert\w+\s*\(|\bpytest\.raises\(`)
	rb := words(`(?:^|\s)(?:def\s+test_\w+|it\s+['"]|test\s+['"])`, `^(?:xit|xdescribe|skip|pending)\b`, `\bassert\w*[\s(]|\bexpect[\s({]|\.should\b`)
	rs := words(`#\[(?:\w+::)*test\b`, `#\[ignore\b`, `\bassert\w*!\s*\(`)
	jv := words(`@(?:Test|ParameterizedTest|RepeatedTest)\b`, `@(?:Disabled|Ignore)\b`, `\bassert\w*\s*\(|\bverify\s*\(`)
	return map[string]*testWords{".js": js, ".jsx": js, ".ts": js, ".tsx": js, ".mjs": js, ".cjs": js, ".mts": js, ".cts": js, ".py": py, ".rb": rb, ".rs": rs, ".java": jv, ".kt": jv}
})

func wordsOf(ext string) *testWords { return allTestWords()[ext] }

// goSuite reads a file of Go's tests.
func goSuite(content []byte) (s suite, ok bool) {
	file, err := parser.ParseFile(token.NewFileSet(), "", content, parser.SkipObjectResolution)
	if err != nil {
		return s, false
	}
	for _, d := range file.Decls {
		fn, is := d.(*ast.FuncDecl)
		if !is || fn.Body == nil {
			continue
		}
		for _, begin := range []string{"Test", "Fuzz", "Example"} {
			if rest, is := strings.CutPrefix(fn.Name.Name, begin); is && fn.Recv == nil && (rest == "" || rest[0] < 'a' || rest[0] > 'z') && fn.Name.Name != "TestMain" {
				s.tests++
				s.names = append(s.names, fn.Name.Name)
			}
		}
		s.skips += skips(fn.Body)
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			if f, is := n.(*ast.FuncLit); is {
				s.skips += skips(f.Body)
			}
			call, is := n.(*ast.CallExpr)
			if !is {
				return true
			}
			sel, is := call.Fun.(*ast.SelectorExpr)
			if !is {
				return true
			}
			on, _ := sel.X.(*ast.Ident)
			switch name := sel.Sel.Name; {
			case on == nil:
			case name == "Error" || name == "Errorf" || name == "Fatal" || name == "Fatalf" || name == "Fail" || name == "FailNow", on.Name == "assert" || on.Name == "require":
				s.asserts++
			}
			return true
		})
	}
	return s, true
}

// skips counts the statements of a function that skip it whatever there is. One under a condition is for a platform, or for
// what is not installed.
func skips(body *ast.BlockStmt) (n int) {
	for _, st := range body.List {
		x, is := st.(*ast.ExprStmt)
		if !is {
			continue
		}
		if call, is := x.X.(*ast.CallExpr); is {
			if sel, is := call.Fun.(*ast.SelectorExpr); is && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) {
				n++
			}
		}
	}
	return n
}

// suites goes through the files of tests that there are before and after a run.
func (e *Evidence) suites(do func(c *api.FileChange, was, is suite)) {
	for i := range e.Changed {
		c := &e.Changed[i]
		if c.Status == "added" || c.Status == "deleted" || !testFile(c.Path) {
			continue
		}
		was, ok := suiteOf(c.Path, e.before(c))
		is, also := suiteOf(c.Path, e.after(c))
		if ok && also {
			do(c, was, is)
		}
	}
}

// testDeleted leaves out a file with tests that are in other files now: by their names in Go, by their number elsewhere.
func testDeleted(e *Evidence, f *found) {
	now, more := map[string]bool{}, 0
	for i := range e.Changed {
		c := &e.Changed[i]
		if c.Status == "deleted" || !testFile(c.Path) {
			continue
		}
		is, ok := suiteOf(c.Path, e.after(c))
		was, _ := suiteOf(c.Path, e.before(c))
		if ok {
			more += max(0, is.tests-was.tests)
		}
		for _, name := range is.names {
			now[name] = true
		}
	}
	for i := range e.Changed {
		c := &e.Changed[i]
		if c.Status == "deleted" && testFile(c.Path) {
			s, ok := suiteOf(c.Path, e.before(c))
			gone := slices.ContainsFunc(s.names, func(name string) bool { return !now[name] })
			switch {
			case ok && s.tests == 0: // helpers, or benchmarks
			case ok && len(s.names) > 0 && !gone, ok && len(s.names) == 0 && s.tests <= more:
				more -= s.tests
			case ok:
				f.at(c.Path, 0, "it had %s", count(s.tests, "test", "tests"))
			default:
				f.at(c.Path, 0, "deleted")
			}
		}
		if c.OldPath != "" && testFile(c.OldPath) && !testFile(c.Path) {
			f.at(c.Path, 0, "%s: it is no test by its name", status(c))
		}
	}
}

// testsFewer looks at all files together: a test that moves from one to another is not gone.
func testsFewer(e *Evidence, f *found) {
	sum := 0
	var fell *api.FileChange
	most := 0
	e.suites(func(c *api.FileChange, was, is suite) {
		sum += is.tests - was.tests
		if gone := was.tests - is.tests; gone > most {
			fell, most = c, gone
		}
	})
	for i := range e.Changed {
		if c := &e.Changed[i]; c.Status == "added" && testFile(c.Path) {
			if s, ok := suiteOf(c.Path, e.after(c)); ok {
				sum += s.tests
			}
		}
	}
	if sum < 0 && fell != nil {
		f.at(fell.Path, 0, "%s fewer in the changed files", count(-sum, "test", "tests"))
	}
}

func testSkipped(e *Evidence, f *found) {
	e.suites(func(c *api.FileChange, was, is suite) {
		if n := is.skips - was.skips; n > 0 {
			f.at(c.Path, 0, "%s more where tests are skipped, or run alone", count(n, "place", "places"))
		}
	})
}

func assertionsFewer(e *Evidence, f *found) {
	e.suites(func(c *api.FileChange, was, is suite) {
		if is.asserts < was.asserts && is.tests >= was.tests {
			f.at(c.Path, 0, "%s, and %d before", count(is.asserts, "assertion", "assertions"), was.asserts)
		}
	})
}

var expectationsChanged = each("*.snap", "*.golden", "*.approved.txt", "/__snapshots__/", "__snapshots__/", "cassettes/")
