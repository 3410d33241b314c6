package run

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// TestX34NamesOfLeftOutPaths: a left-out path is found where it is named as a whole
// component of a path, and nowhere else.
func TestX34NamesOfLeftOutPaths(t *testing.T) {
	const top = "/home/u/my work"
	left := []workspace.LeftOut{
		{Path: ".env", Kind: workspace.Secret}, {Path: "config/.env", Kind: workspace.Secret}, {Path: "app/[slug]/key one.pem", Kind: workspace.Secret},
		{Path: ".ssh", Kind: workspace.Secret}, {Path: ".aws/credentials", Kind: workspace.Secret}, {Path: "run.sock", Kind: workspace.Special},
		{Path: "conf/.npmrc", Kind: workspace.Fields}, {Path: "tracked.pem", Kind: workspace.Tracked}, {Path: "made.pem", Kind: workspace.Secret},
		{Path: "link", Kind: workspace.Outside}, {Path: "pkg/a/.envrc", Kind: workspace.Secret}, {Path: "pkg/b/.envrc", Kind: workspace.Secret},
	}
	there := func(rel string) bool {
		return slices.Contains([]string{"made.pem", "link", "conf/.npmrc", "tracked.pem", "pkg/c/.envrc"}, rel)
	}
	for _, c := range []struct {
		name, workdir, text string
		want                []string
	}{
		{"cat", "", "cat: .env: No such file or directory\n", []string{".env"}},
		{"Python", "", "FileNotFoundError: [Errno 2] No such file or directory: '.env'", []string{".env"}},
		{"Node", "", "Error: ENOENT: no such file or directory, open '/home/u/my work/config/.env'", []string{"config/.env"}},
		{"Go, another folder", "config", "open .env: no such file or directory", []string{"config/.env"}},
		{"up", "config", "open ../.env: no such file or directory", []string{".env"}},
		{"GNU quotes", "", "cannot stat ‘./config/.env’", []string{"config/.env"}},
		{"several, in the order of the list", "", "need config/.env and .env", []string{".env", "config/.env"}},
		{"coloured", "", "open \x1b[31m.env\x1b[0m\x1b]0;title\x07", []string{".env"}},
		{"the end of a sentence", "", "Please make .env.", []string{".env"}},
		{"escaped", "", `{"error":"open .env\nfailed"}`, []string{".env"}},
		{"CRLF", "", "open .env\r\n", []string{".env"}},
		{"NUL", "", "open\x00.env\x00\xff\xfe\x01", []string{".env"}},
		{"bytes that are no UTF-8 beside it", "", "\xff.env .env\xfe \xc3.env", nil},
		{"spaces and brackets", "", "open app/[slug]/key one.pem: denied", []string{"app/[slug]/key one.pem"}},
		{"the same, absolute", "", "open /home/u/my work/app/[slug]/key one.pem", []string{"app/[slug]/key one.pem"}},
		{"below a folder", "", "Identity file .ssh/id_rsa not accessible", []string{".ssh"}},
		{"a word", "", "invalid credentials for u", nil},
		{"a word about a file", "", "credentials: No such file or directory", []string{".aws/credentials"}},
		{"a word with its folder", "", "bad .aws/credentials", []string{".aws/credentials"}},
		{"no secret", "", "connect run.sock: refused", []string{"run.sock"}},
		{"what came in without some fields", "", "bad conf/.npmrc", nil},
		{"what git tracks", "", "bad tracked.pem", nil},
		{"what the cell has made anew", "", "bad made.pem", nil},
		{"what leads outside", "", "cat: link: No such file or directory", []string{"link"}},
		{"changed its directory", "", "open .envrc: no such file", []string{"pkg/a/.envrc", "pkg/b/.envrc"}},
		{"what is in the cell there", "pkg/c", "bad .envrc", nil},
		{"parts of other words", "", ".env.local .envs x.env .env2 .env_old .env-example $.env .env~ process.env my.ssh .sshd", nil},
		{"in another place", "", "/etc/.env other/.env https://host/.env /home/u/.env", nil},
		{"nothing", "", "", nil},
	} {
		f := newLeftOutFinder(&state.Cell{LeftOut: left, Source: top}, filepath.Join(top, c.workdir), there)
		var got []string
		for _, l := range f.find(nil, "command", []byte(c.text), false) {
			got = append(got, l.Path)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q names %q, want %q", c.name, c.text, got, c.want)
		}
	}
	f := newLeftOutFinder(&state.Cell{LeftOut: left, Source: top}, "", there)
	if got := f.find(nil, "command", []byte(".env: x"), true); len(got) != 0 {
		t.Errorf("the rest of a word that was cut is taken for a name: %v", got)
	}
	if got := f.find(nil, "command", bytes.Repeat([]byte(".env/x/"), namedTail), true); len(got) != 0 {
		t.Errorf("one long word: %v", got)
	}
}
