// Command house prints how large the parts of this repository are: lines of each package,
// its largest types, interfaces with one implementation, and sleeps of tests. Lines are
// those with code; generated files, comments and blank lines do not count.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/scanner"
	"go/token"
	"go/types"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

const module = "github.com/pando-dev/pando/"

// size is what is counted of a package.
type size struct{ code, tests, files int }

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "house:", err)
		os.Exit(1)
	}
}

func run() error {
	all, err := packages.Load(&packages.Config{
		Tests: true,
		Mode:  packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports,
	}, "./...")
	if err != nil {
		return err
	}
	if packages.PrintErrors(all) > 0 {
		return errors.New("the packages have errors")
	}
	slices.SortFunc(all, func(a, b *packages.Package) int { return cmp.Compare(a.ID, b.ID) })
	sizes, sleeps := map[string]*size{}, 0
	seen := map[string]bool{}
	for _, p := range all {
		path := strings.TrimSuffix(strings.TrimPrefix(p.PkgPath, module), "_test")
		for _, f := range p.Syntax {
			name := p.Fset.File(f.Pos()).Name()
			if seen[name] || strings.HasSuffix(p.PkgPath, ".test") || ast.IsGenerated(f) {
				continue
			}
			seen[name] = true
			if sizes[path] == nil {
				sizes[path] = &size{}
			}
			n, err := lines(name)
			if err != nil {
				return err
			}
			if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(path, "test") {
				sizes[path].tests += n
				sleeps += sleepsIn(f)
				continue
			}
			sizes[path].code += n
			sizes[path].files++
		}
	}
	printSizes(sizes)
	printTypes(all)
	printInterfaces(all)
	fmt.Printf("\nSleeps in tests: %d\n", sleeps)
	return nil
}

// lines is how many lines of a file have code.
func lines(name string) (int, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	fset := token.NewFileSet()
	file := fset.AddFile(name, -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	with := map[int]bool{}
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return len(with), nil
		}
		if tok == token.SEMICOLON && lit == "\n" {
			continue
		}
		for i := range strings.Count(lit, "\n") + 1 {
			with[file.Line(pos)+i] = true
		}
	}
}

// sleepsIn counts the calls of time.Sleep.
func sleepsIn(f *ast.File) (n int) {
	ast.Inspect(f, func(x ast.Node) bool {
		if s, ok := x.(*ast.SelectorExpr); ok {
			if p, ok := s.X.(*ast.Ident); ok && p.Name == "time" && s.Sel.Name == "Sleep" {
				n++
			}
		}
		return true
	})
	return n
}

func printSizes(sizes map[string]*size) {
	var total size
	fmt.Printf("| package | code | tests | files |\n|---|---:|---:|---:|\n")
	for _, path := range slices.SortedFunc(maps.Keys(sizes), func(a, b string) int {
		return cmp.Or(cmp.Compare(sizes[b].code, sizes[a].code), cmp.Compare(a, b))
	}) {
		s := sizes[path]
		fmt.Printf("| %s | %d | %d | %d |\n", path, s.code, s.tests, s.files)
		total.code, total.tests, total.files = total.code+s.code, total.tests+s.tests, total.files+s.files
	}
	fmt.Printf("| **all** | **%d** | **%d** | **%d** |\n", total.code, total.tests, total.files)
}

// ours yields the types that our packages declare outside of tests.
func ours(all []*packages.Package, yield func(*types.TypeName)) {
	for _, p := range all {
		if p.ID != p.PkgPath || !strings.HasPrefix(p.PkgPath, module) || strings.HasSuffix(p.PkgPath, "test") {
			continue
		}
		for _, name := range p.Types.Scope().Names() {
			if t, ok := p.Types.Scope().Lookup(name).(*types.TypeName); ok && !t.IsAlias() {
				yield(t)
			}
		}
	}
}

func title(t *types.TypeName) string {
	return strings.TrimPrefix(t.Pkg().Path(), module) + "." + t.Name()
}

func printTypes(all []*packages.Package) {
	methods := map[string]int{}
	ours(all, func(t *types.TypeName) {
		if n, ok := t.Type().(*types.Named); ok {
			methods[title(t)] = n.NumMethods()
		}
	})
	fmt.Printf("\n| type | methods |\n|---|---:|\n")
	for _, name := range slices.SortedFunc(maps.Keys(methods), func(a, b string) int {
		return cmp.Or(cmp.Compare(methods[b], methods[a]), cmp.Compare(a, b))
	})[:12] {
		fmt.Printf("| %s | %d |\n", name, methods[name])
	}
}

// printInterfaces prints the interfaces that one type of ours implements, or none. Types
// are compared by the names and texts of methods: tests have packages of their own, in
// which the same types are others.
func printInterfaces(all []*packages.Package) {
	var interfaces, types_ []*types.TypeName
	ours(all, func(t *types.TypeName) {
		named, ok := t.Type().(*types.Named)
		if !ok || named.TypeParams().Len() > 0 {
			return
		}
		if i, ok := named.Underlying().(*types.Interface); ok {
			if i.NumMethods() > 0 {
				interfaces = append(interfaces, t)
			}
			return
		}
		types_ = append(types_, t)
	})
	fakes := map[string]int{} // by the interface's title, types of tests
	for _, p := range all {
		if p.ID == p.PkgPath && !strings.HasSuffix(p.PkgPath, "test") {
			continue
		}
		for _, name := range p.Types.Scope().Names() {
			t, ok := p.Types.Scope().Lookup(name).(*types.TypeName)
			if !ok || !strings.HasSuffix(p.Fset.File(t.Pos()).Name(), "_test.go") && !strings.HasSuffix(p.PkgPath, "test") {
				continue
			}
			for _, i := range interfaces {
				if has(t, i) {
					fakes[title(i)]++
				}
			}
		}
	}
	fmt.Printf("\n| interface with one implementation or none | of ours | in tests |\n|---|---:|---:|\n")
	for _, i := range interfaces {
		n := 0
		for _, t := range types_ {
			if has(t, i) {
				n++
			}
		}
		if n <= 1 {
			fmt.Printf("| %s | %d | %d |\n", title(i), n, fakes[title(i)])
		}
	}
}

// has reports whether a type has all methods of an interface.
func has(t, i *types.TypeName) bool {
	text := func(f types.Object) string {
		sig := f.Type().(*types.Signature)
		list := func(t *types.Tuple) (all []string) {
			for v := range t.Variables() {
				all = append(all, types.TypeString(v.Type(), func(p *types.Package) string { return p.Path() }))
			}
			return all
		}
		return fmt.Sprint(f.Name(), list(sig.Params()), sig.Variadic(), list(sig.Results()))
	}
	set := types.NewMethodSet(types.NewPointer(t.Type()))
	mine := map[string]bool{}
	for m := range set.Methods() {
		mine[text(m.Obj())] = true
	}
	for m := range i.Type().Underlying().(*types.Interface).Methods() {
		if !mine[text(m)] {
			return false
		}
	}
	return true
}
