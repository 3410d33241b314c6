// Words finds person words in comments and texts of Go files: a process, a caller or a file
// is a thing, and text about it names the thing. Packages in a list have none; words prints
// each hit in them as "file:line: word: line" and exits with status 1.
//
//	go run ./tools/words [-list FILE] [-count]
//
// The list has one package a line, as a path from the root of the repository;
// "internal/store/..." is a folder with all below it. Lines that begin with # are comments.
// -count prints the number of hits of every package instead, listed or not.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// persons are the words that make a person of a thing.
var persons = []string{
	"who", "whom", "whose", "whoever", "somebody", "someone", "nobody", "anybody", "everybody",
	"anyone", "everyone",
}

// hit is one person word.
type hit struct {
	pkg  string // slash-separated path of the package's folder
	file string
	line int
	word string
	text string // the line that has it
}

func main() {
	list := flag.String("list", "testdata/words.txt", "the packages that have no person words")
	count := flag.Bool("count", false, "print the number of hits of every package")
	flag.Parse()
	bad, err := run(os.Stdout, os.DirFS("."), *list, *count)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot check words:", err)
		os.Exit(2)
	}
	if bad {
		os.Exit(1)
	}
}

// run checks the tree and prints to out. It reports whether a listed package has a hit;
// with count it prints numbers instead and reports false.
func run(out io.Writer, tree fs.FS, list string, count bool) (bool, error) {
	listed, err := readList(tree, list)
	if err != nil {
		return false, err
	}
	hits, packages, err := find(tree)
	if err != nil {
		return false, err
	}
	if count {
		printCounts(out, hits)
		return false, nil
	}
	for _, l := range listed {
		if !slices.ContainsFunc(packages, func(p string) bool { return covers(l, p) }) {
			return false, fmt.Errorf("%s lists %s, which has no Go file", list, l)
		}
	}
	bad := false
	for _, h := range hits {
		if slices.ContainsFunc(listed, func(l string) bool { return covers(l, h.pkg) }) {
			bad = true
			fmt.Fprintf(out, "%s:%d: %s: %s\n", h.file, h.line, h.word, h.text)
		}
	}
	return bad, nil
}

func printCounts(out io.Writer, hits []hit) {
	n := make(map[string]int)
	for _, h := range hits {
		n[h.pkg]++
	}
	for _, p := range slices.SortedFunc(maps.Keys(n), func(a, b string) int {
		return cmp.Or(cmp.Compare(n[b], n[a]), cmp.Compare(a, b))
	}) {
		fmt.Fprintf(out, "%5d %s\n", n[p], p)
	}
}

// covers reports whether an entry of the list means a package.
func covers(entry, pkg string) bool {
	if dir, ok := strings.CutSuffix(entry, "/..."); ok {
		return pkg == dir || strings.HasPrefix(pkg, dir+"/")
	}
	return entry == pkg
}

func readList(tree fs.FS, name string) ([]string, error) {
	b, err := fs.ReadFile(tree, name)
	if err != nil {
		return nil, err
	}
	var listed []string
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			listed = append(listed, line)
		}
	}
	return listed, nil
}

// find returns the hits and the packages of a tree, in the order of file names. It leaves
// out hidden folders and testdata.
func find(tree fs.FS) ([]hit, []string, error) {
	var hits []hit
	var packages []string
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if base := d.Name(); name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "node_modules") {
				return fs.SkipDir
			}
			return nil
		case filepath.Ext(name) != ".go":
			return nil
		}
		src, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		pkg := path.Dir(name)
		if !slices.Contains(packages, pkg) {
			packages = append(packages, pkg)
		}
		found, err := findInFile(name, src)
		for i := range found {
			found[i].pkg = pkg
		}
		hits = append(hits, found...)
		return err
	})
	return hits, packages, err
}

// findInFile returns the hits in a file's comments and, if it is no test, in its strings.
func findInFile(name string, src []byte) ([]hit, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var hits []hit
	add := func(pos token.Pos, text string) {
		first := fset.Position(pos).Line
		i := 0
		for line := range strings.Lines(text) {
			for _, w := range personsIn(line) {
				hits = append(hits, hit{file: name, line: first + i, word: w, text: strings.TrimSpace(line)})
			}
			i++
		}
	}
	for _, g := range f.Comments {
		for _, c := range g.List {
			add(c.Pos(), c.Text)
		}
	}
	if !strings.HasSuffix(name, "_test.go") {
		ast.Inspect(f, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(lit.Value)
			if err != nil || slices.Contains(persons, text) { // a word alone is a name: "nobody" is a user
				return true
			}
			if lit.Value[0] == '"' { // "\n" in it begins no line of the file
				text = strings.ReplaceAll(text, "\n", " ")
			}
			add(lit.Pos(), text)
			return true
		})
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return a.line - b.line })
	return hits, nil
}

// personsIn returns the person words of a line. A word alone between double quotes or
// backquotes is a name and does not count.
func personsIn(line string) []string {
	var found []string
	runes := []rune(line)
	part := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' }
	for i := 0; i < len(runes); {
		if !part(runes[i]) {
			i++
			continue
		}
		start := i
		for i < len(runes) && part(runes[i]) {
			i++
		}
		word := strings.ToLower(string(runes[start:i]))
		quoted := start > 0 && i < len(runes) && runes[start-1] == runes[i] && (runes[i] == '"' || runes[i] == '`')
		if !quoted && slices.Contains(persons, word) {
			found = append(found, word)
		}
	}
	return found
}
