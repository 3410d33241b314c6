package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/linux"
)

func TestPageIsUpToDate(t *testing.T) {
	have, err := os.ReadFile("../../docs/reference/seccomp.md")
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	write(&want)
	if !bytes.Equal(have, want.Bytes()) {
		t.Error("docs/reference/seccomp.md is not what the table says: run go run ./tools/seccompdoc")
	}
	for _, g := range linux.SeccompTable() {
		for _, name := range strings.Fields(g.Calls) {
			if !strings.Contains(want.String(), "`"+name+"`") {
				t.Errorf("%s is not on the page", name)
			}
		}
	}
}
