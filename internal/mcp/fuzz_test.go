package mcp

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/bound/boundtest"
)

// FuzzResource reads whatever an agent takes for the address of a resource.
func FuzzResource(f *testing.F) {
	for _, uri := range []string{"pando://runs/r-1/stdout", "pando://runs/r-1/events?offset=3", "pando://cells/c/files//etc/passwd", "pando://cells/c/files/..%2f..%2fx", "pando://cells/../files/x",
		"pando://receipts/-/statement", "pando://cells/c/diff?from=1&to=2&stat=1", "pando://outputs/x", "pando://", "file:///etc/passwd", "pando://runs/%zz/stdout", "pando://runs/a%2fb/stdout?offset=-1",
		"pando://runs/r/stdout?offset=9223372036854775807", "pando://runs//stdout", "pando://cells/-/diff", "pando://cells//files/x"} {
		f.Add(uri, 0, 100)
	}
	s, d := serve(f, Config{}, map[string]http.HandlerFunc{
		"GET /v1/runs/{run}/files/{name}": func(w http.ResponseWriter, r *http.Request) { w.Write(bytes.Repeat([]byte("é"), 1000)) },
		"GET /v1/runs/{run}/diff":         answers(api.Diff{Text: strings.Repeat("é", 1000)}),
		"GET /v1/cells/{cell}/files":      func(w http.ResponseWriter, r *http.Request) { w.Write(archive("x", strings.Repeat("é", 1000))) },
	})
	f.Fuzz(func(t *testing.T, uri string, offset, limit int) {
		limit = limitOf(limit)
		d.take()
		r, err := s.open(t.Context(), uri, offset, limit)
		for _, path := range d.take() {
			if !names(path) {
				t.Errorf("%q asks %s", uri, path)
			}
		}
		if err != nil {
			return
		}
		if len(r.part) > limit || r.offset < 0 {
			t.Errorf("%q has %d bytes from %d on", uri, len(r.part), r.offset)
		}
		words, _, err := parse(uri)
		again, q, err2 := parse(withOffset(uri, 7))
		if err != nil || err2 != nil || !slices.Equal(words, again) || q.Get("offset") != "7" {
			t.Errorf("%q from 7 on is %q: %v, %v", uri, withOffset(uri, 7), err, err2)
		}
	})
}

func archive(name, text string) []byte {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))})
	t.Write([]byte(text))
	t.Close()
	return b.Bytes()
}

// FuzzTool calls tools with whatever a model takes for their arguments.
func FuzzTool(f *testing.F) {
	tools := []string{"create", "list", "show", "exec", "eval", "run", "read_file", "write_file", "list_files", "fork", "branch", "checkpoint", "restore", "diff", "policy_why", "receipt", "read", "kill"}
	for i := range tools {
		for _, args := range []string{`{}`, `{"cell":"c","id":"c","of":"c","path":"x","code":"1","shell":"true"}`, `{"cell":"../x","count":-1,"checkpoint":1}`, `{"cell":"c","command":[""]}`, `[]`, `null`, `{"cell":7}`,
			`{"uri":"pando://cells/c/diff"}`, `{"what":"runs","limit":-5,"offset":-1}`, `{"from":"../..","backend":"none"}`, `{"cell":"c","path":"a/..","base64":"!"}`} {
			f.Add(i, args)
		}
	}
	s, d := serve(f, Config{}, nil)
	cs := agent(f, s, nil)
	top := []string{"GET /v1/cells", "GET /v1/runs", "GET /v1/templates", "POST /v1/cells", "POST /v1/runs", "POST /v1/policies/why"}
	f.Fuzz(func(t *testing.T, tool int, args string) {
		if !json.Valid([]byte(args)) {
			return
		}
		name := tools[uint(tool)%uint(len(tools))]
		var r *sdk.CallToolResult
		var err error
		boundtest.Allocates(t, len(args), func() {
			r, err = cs.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: json.RawMessage(args)})
		})
		for _, path := range d.take() {
			if !names(path) && !slices.Contains(top, path) {
				t.Errorf("%s %s asks %s", name, args, path)
			}
		}
		if err != nil {
			return // arguments that are none
		}
		if !r.IsError || said(r) == "" {
			t.Errorf("%s %s, of a daemon that has nothing, is answered with %q", name, args, said(r))
		}
	})
}

// FuzzShow cuts whatever commands write, in whatever pieces it comes.
func FuzzShow(f *testing.F) {
	f.Add([]byte("äöü äöü"), 3, 5)
	f.Add(bytes.Repeat([]byte{0xff}, 100), 7, 10)
	f.Add([]byte(strings.Repeat("line\n", 1000)), 100, 300)
	f.Fuzz(func(t *testing.T, b []byte, piece, limit int) {
		limit = min(limitOf(limit), 1<<10)
		s := &Server{out: &outputs{}}
		c := &collector{}
		for p := range slices.Chunk(b, max(1, piece%4096)) {
			c.add(p)
		}
		v := s.show(c, limit, "")
		text, err := json.Marshal(v)
		if err != nil || !utf8.ValidString(v.Text) || !utf8.Valid(text) || v.Bytes != int64(len(b)) {
			t.Errorf("%d bytes are shown as %+v: %v", len(b), v, err)
		}
		if n := 3*limit + len(v.Note) + 20; len(v.Text) > n { // what is no UTF-8 grows
			t.Errorf("%d bytes are shown with %d, of at most %d", len(b), len(v.Text), limit)
		}
		if len(b) <= limit && v.Text != valid(b) || len(b) > limit && v.Rest == "" {
			t.Errorf("%q is shown as %+v", b, v)
		}
		if n := min(len(b), 50); !bytes.Equal(c.tail(50), b[len(b)-n:]) {
			t.Errorf("%q ends with %q", b, c.tail(50))
		}
		if v.Rest != "" {
			if kept, err := s.out.get(strings.TrimPrefix(v.Rest, "pando://outputs/")); err != nil || !bytes.Equal(kept, b) {
				t.Errorf("what is left out is not kept: %v", err)
			}
		}
	})
}

// FuzzEntries lists whatever a cell sends for an archive.
func FuzzEntries(f *testing.F) {
	f.Add(archive("dir/a", "text"), 1)
	f.Add(archive("../../x", ""), 2)
	f.Add(archive(strings.Repeat("a/", 200)+"x", "text"), 300)
	f.Add(bytes.Repeat(archive("a\xff", "")[:512], 5), 1)
	var long bytes.Buffer
	t := tar.NewWriter(&long)
	for range 200 {
		t.WriteHeader(&tar.Header{Name: "dir/link", Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("x", 4000)})
	}
	f.Add(long.Bytes(), 1)
	f.Fuzz(func(t *testing.T, b []byte, depth int) {
		list, _, err := entriesOf(bytes.NewReader(b), max(depth%10, 1))
		if err != nil {
			return
		}
		length := 0
		for _, e := range list {
			length += len(e.Path) + len(e.To)
			if !utf8.ValidString(e.Path+e.To) || strings.HasPrefix(e.Path, "/") || slices.Contains(strings.Split(e.Path, "/"), "..") {
				t.Errorf("there is a %+v", e)
			}
		}
		if len(list) > entries || len(list) > 1 && length > 3*namesMost {
			t.Errorf("%d entries with %d bytes of names", len(list), length)
		}
	})
}
