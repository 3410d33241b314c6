package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const passes = `{"Action":"run","Package":"github.com/pando-dev/pando/a","Test":"TestA"}
{"Action":"pass","Package":"github.com/pando-dev/pando/a","Test":"TestA","Elapsed":0.1}
{"Action":"output","Package":"github.com/pando-dev/pando/a","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Package":"github.com/pando-dev/pando/a","Test":"TestB","Output":"    a_test.go:7: needs a moon\n"}
{"Action":"output","Package":"github.com/pando-dev/pando/a","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"github.com/pando-dev/pando/a","Test":"TestB","Elapsed":0}
{"Action":"pass","Package":"github.com/pando-dev/pando/a","Elapsed":0.2}
`

func TestSkips(t *testing.T) {
	list := filepath.Join(t.TempDir(), "skips.txt")
	for _, c := range []struct{ name, in, list, wants, fails string }{
		{"a skip is shown with its reason", passes, "a TestB  any words\n", "skipped\ta TestB  needs a moon", ""},
		{"what took longest is shown", passes, "a TestB\n", "slow\ta TestA  0.1s", ""},
		{"an unlisted skip fails", passes, "# a TestB\na TestBB\n", "", "not listed"},
		{"a failure fails and is shown", passes + `{"Action":"output","Package":"b","Test":"TestC","Output":"boo\n"}
{"Action":"fail","Package":"b","Test":"TestC"}
`, "a TestB\n", "boo", "1 failed"},
		{"a build that fails fails", `{"Action":"build-output","ImportPath":"b","Output":"syntax error\n"}
{"Action":"build-fail","ImportPath":"b"}
`, "", "syntax error", "1 failed"},
		{"nothing is no success", "", "", "", "no test ran"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.WriteFile(list, []byte(c.list), 0o644); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			err := run(strings.NewReader(c.in), &out, list)
			if (err == nil) != (c.fails == "") || (err != nil && !strings.Contains(err.Error(), c.fails)) {
				t.Errorf("error %v, want %q", err, c.fails)
			}
			if !strings.Contains(out.String(), c.wants) {
				t.Errorf("printed %q, want %q", out.String(), c.wants)
			}
		})
	}
}
