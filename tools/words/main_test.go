package main

import (
	"strings"
	"testing"
	"testing/fstest"
)

const broken = `// Package a is for whoever needs it.
package a

/* A block
whose second line has one. */
const (
	name  = "nobody"
	hint  = "ask somebody\nand someone"
	field = "{\"who\": 1}"
	long  = ` + "`first\nsecond: Everyone`" + `
)

type T struct {
	Who string ` + "`json:\"who\"`" + ` // "who" and whole are no person words
}
`

const brokenTest = `package a

const text = "nobody" + " who"

// Nobody calls it.
`

func tree(list string) fstest.MapFS {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	return fstest.MapFS{
		"words.txt":          file(list),
		"x/a/a.go":           file(broken),
		"x/a/a_test.go":      file(brokenTest),
		"x/a/testdata/no.go": file("// who\n"),
		"x/b/b.go":           file("// Who is it?\npackage b\n"),
		"x/c/c.go":           file("package c\n"),
	}
}

func check(t *testing.T, list string, count bool) (string, bool, error) {
	t.Helper()
	var out strings.Builder
	bad, err := run(&out, tree(list), "words.txt", count)
	return out.String(), bad, err
}

func TestListedPackages(t *testing.T) {
	const inA = `x/a/a.go:1: whoever: // Package a is for whoever needs it.
x/a/a.go:5: whose: whose second line has one. */
x/a/a.go:8: somebody: ask somebody and someone
x/a/a.go:8: someone: ask somebody and someone
x/a/a.go:11: everyone: second: Everyone
x/a/a_test.go:5: nobody: // Nobody calls it.
`
	const inB = "x/b/b.go:1: who: // Who is it?\n"
	for list, want := range map[string]string{
		"":                    "",
		"# x/a\n":             "",
		"x/c\n":               "",
		"x/a\nx/c":            inA,
		"# done\n\nx/...\n":   inA + inB,
		"x/b/...\n":           inB,
		"x/c/...\nx/a # no\n": "error",
		"x/gone\n":            "error",
		"x\n":                 "error",
	} {
		out, bad, err := check(t, list, false)
		if want == "error" {
			if err == nil {
				t.Errorf("the list %q is accepted, and has an entry that means no package", list)
			}
			continue
		}
		if err != nil || out != want || bad != (want != "") {
			t.Errorf("with the list %q: bad %v, error %v, output\n%swant\n%s", list, bad, err, out, want)
		}
	}
}

func TestCount(t *testing.T) {
	out, bad, err := check(t, "", true)
	if want := "    6 x/a\n    1 x/b\n"; out != want || bad || err != nil {
		t.Errorf("bad %v, error %v, output\n%swant\n%s", bad, err, out, want)
	}
}
