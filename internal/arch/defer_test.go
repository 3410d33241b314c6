package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"testing"
)

// The arguments of a deferred call are evaluated at its defer: what gets its value or its elements later is not what the call sees.
func TestDeferredCallsSeeWhatThereIs(t *testing.T) {
	for _, p := range list(t) {
		for _, name := range p.GoFiles {
			for _, at := range earlyDefers(t, filepath.Join(p.Dir, name), nil) {
				t.Errorf("%s/%s:%d defers a call with a variable that changes afterwards: defer a function that names it", p.ImportPath, name, at)
			}
		}
	}
	const broken = `package x
func f() {
	var a, c [3]int
	defer g(a)
	var b []int
	defer g(b)
	defer func() { g(c) }()
	a[0], c[0] = 1, 1
	b = append(b, 1)
	var d []int
	d = append(d, 1)
	defer g(d)
	d[0] = 2
}`
	if got := earlyDefers(t, "broken.go", broken); !slices.Equal(got, []int{4, 6}) {
		t.Errorf("found in lines %v", got)
	}
}

// earlyDefers returns the lines of deferred calls that are passed a slice which grows later in the function, or an array that gets
// elements.
func earlyDefers(t *testing.T, path string, src any) (lines []int) {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, path, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range f.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		deferred, arrays := map[string]token.Pos{}, map[string]bool{}
		early := func(name string) {
			if at, ok := deferred[name]; ok {
				lines = append(lines, set.Position(at).Line)
				delete(deferred, name)
			}
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				if of, ok := n.Type.(*ast.ArrayType); ok && of.Len != nil {
					for _, id := range n.Names {
						arrays[id.Name] = true
					}
				}
			case *ast.DeferStmt:
				for _, arg := range n.Call.Args {
					if id, ok := arg.(*ast.Ident); ok {
						deferred[id.Name] = n.Pos()
					}
				}
			case *ast.AssignStmt:
				for i, to := range n.Lhs {
					switch to := to.(type) {
					case *ast.IndexExpr:
						if id, ok := to.X.(*ast.Ident); ok && arrays[id.Name] {
							early(id.Name)
						}
					case *ast.Ident:
						if i < len(n.Rhs) && n.Tok == token.ASSIGN {
							if call, ok := n.Rhs[i].(*ast.CallExpr); ok {
								if of, ok := call.Fun.(*ast.Ident); ok && of.Name == "append" {
									early(to.Name)
								}
							}
						}
					}
				}
			}
			return true
		})
	}
	slices.Sort(lines)
	return lines
}
