package arch

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

// begins reports whether a record may be made with this in one of the fields that change by a
// table; there says whether it is one.
func begins(field, value string) (ok, there bool) {
	var err error
	switch field {
	case "Cell.State":
		_, err = cell.State("").To(cell.State(value))
	case "Run.Phase":
		_, err = cell.Phase("").To(cell.Phase(value))
	case "Run.Verdict": // it has none
		return false, true
	default:
		return false, false
	}
	return err == nil, true
}

// A cell's state, and a run's phase and verdict, change by the methods of their records, which
// go by the tables in internal/cell: nothing outside of internal/state assigns them. Tests may.
func TestStatesChangeByTheirTable(t *testing.T) {
	t.Parallel()
	const state = module + "internal/state"
	users := slices.DeleteFunc(list(t), func(p pkg) bool { return !slices.Contains(p.Imports, state) })
	if len(users) == 0 {
		t.Fatal("nothing imports internal/state")
	}
	exports := exportsFor(t, users)
	for _, p := range users {
		fset, files, info := checked(t, p, exports)
		// record names a field of a record; "" for any other.
		record := func(v types.Object, of types.Type) string {
			if ptr, ok := of.Underlying().(*types.Pointer); ok {
				of = ptr.Elem()
			}
			named, ok := types.Unalias(of).(*types.Named)
			if v == nil || !ok || named.Obj().Pkg() == nil || named.Obj().Pkg().Path() != state {
				return ""
			}
			name := named.Obj().Name() + "." + v.Name()
			if _, there := begins(name, ""); !there {
				return ""
			}
			return name
		}
		assigned := func(e ast.Expr) {
			s, ok := e.(*ast.SelectorExpr)
			if !ok || info.Selections[s] == nil {
				return
			}
			if name := record(info.Selections[s].Obj(), info.Selections[s].Recv()); name != "" {
				t.Errorf("%s: assigns %s: use a method of the record", fset.Position(e.Pos()), name)
			}
		}
		for _, f := range files {
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.AssignStmt:
					for _, e := range n.Lhs {
						assigned(e)
					}
				case *ast.RangeStmt:
					assigned(n.Key)
					assigned(n.Value)
				case *ast.UnaryExpr:
					if n.Op == token.AND {
						assigned(n.X)
					}
				case *ast.CompositeLit:
					for _, e := range n.Elts {
						kv, ok := e.(*ast.KeyValueExpr)
						if !ok {
							continue
						}
						key, ok := kv.Key.(*ast.Ident)
						if !ok {
							continue
						}
						name := record(info.Uses[key], info.Types[n].Type)
						if name == "" {
							continue
						}
						if v := info.Types[kv.Value].Value; v != nil {
							if ok, _ := begins(name, constant.StringVal(v)); ok {
								continue
							}
						}
						t.Errorf("%s: no record begins with this %s", fset.Position(kv.Pos()), name)
					}
				}
				return true
			})
		}
	}
}

// exportsFor is where the compiler has written what packages export that these need.
func exportsFor(t *testing.T, users []pkg) map[string]string {
	t.Helper()
	args := []string{"list", "-trimpath", "-export", "-deps", "-json=ImportPath,Export"} // as they are built for tests
	for _, p := range users {
		args = append(args, module+p.ImportPath)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = "../.."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	exports := map[string]string{}
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var d struct{ ImportPath, Export string }
		if err := dec.Decode(&d); err != nil {
			t.Fatal(err)
		}
		exports[d.ImportPath] = d.Export
	}
	return exports
}

// checked is a package with its types.
func checked(t *testing.T, p pkg, exports map[string]string) (*token.FileSet, []*ast.File, *types.Info) {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
	if _, err := conf.Check(p.ImportPath, fset, files, info); err != nil {
		t.Fatal(err)
	}
	return fset, files, info
}
