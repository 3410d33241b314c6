// Words finds person words in comments and texts of Go files: a process, a caller or a file
// is a thing, and text about it names the thing. It prints each hit as
// "file:line: word: line" and exits with status 1 when there is one.
//
//	go run ./tools/words
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
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
	file string
	line int
	word string
	text string // the line that has it
}

func main() {
	bad, err := run(os.Stdout, os.DirFS("."))
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot check words:", err)
		os.Exit(2)
	}
	if bad {
		os.Exit(1)
	}
}

// run prints the hits in a tree to out, in the order of file names, and reports whether there are
// any. It leaves out hidden folders and testdata.
func run(out io.Writer, tree fs.FS) (bad bool, err error) {
	err = fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
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
		found, err := findInFile(name, src)
		for _, h := range found {
			bad = true
			fmt.Fprintf(out, "%s:%d: %s: %s\n", h.file, h.line, h.word, h.text)
		}
		return err
	})
	return bad, err
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
