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

func TestWords(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	tree := fstest.MapFS{
		"x/a/a.go":           file(broken),
		"x/a/a_test.go":      file(brokenTest),
		"x/a/testdata/no.go": file("// who\n"),
		"x/b/b.go":           file("// Who is it?\npackage b\n"),
		"x/c/c.go":           file("package c\n"),
	}
	const want = `x/a/a.go:1: whoever: // Package a is for whoever needs it.
x/a/a.go:5: whose: whose second line has one. */
x/a/a.go:8: somebody: ask somebody and someone
x/a/a.go:8: someone: ask somebody and someone
x/a/a.go:11: everyone: second: Everyone
x/a/a_test.go:5: nobody: // Nobody calls it.
x/b/b.go:1: who: // Who is it?
`
	var out strings.Builder
	if bad, err := run(&out, tree); err != nil || !bad || out.String() != want {
		t.Errorf("bad %v, error %v, output\n%swant\n%s", bad, err, out.String(), want)
	}
	if bad, err := run(&out, fstest.MapFS{"x/c/c.go": tree["x/c/c.go"]}); bad || err != nil {
		t.Errorf("without a person word: bad %v, error %v", bad, err)
	}
}
