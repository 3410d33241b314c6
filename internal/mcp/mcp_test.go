package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/testenv"
)

// daemon is one that knows nothing but what its handlers say, and keeps what it was
// asked.
type daemon struct {
	mux *http.ServeMux

	mu    sync.Mutex // guards asked
	asked []string   // method and path, as they came
}

func (d *daemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/v1/daemon" {
		d.mu.Lock()
		d.asked = append(d.asked, r.Method+" "+r.URL.EscapedPath())
		d.mu.Unlock()
	}
	d.mux.ServeHTTP(w, r)
}

// take returns what was asked since it was asked last.
func (d *daemon) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	asked := d.asked
	d.asked = nil
	return asked
}

// answers says what is asked with a document.
func answers(v any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { json.NewEncoder(w).Encode(v) }
}

// serve makes a server over a daemon that answers as handlers say, and that
// everything else is not there.
func serve(t testing.TB, cfg Config, handlers map[string]http.HandlerFunc) (*Server, *daemon) {
	t.Helper()
	d := &daemon{mux: http.NewServeMux()}
	d.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		json.NewEncoder(w).Encode(api.Error{Kind: "not-found", Message: "cannot find it"})
	})
	d.mux.HandleFunc("GET /v1/daemon", answers(api.Daemon{}))
	for pattern, h := range handlers {
		d.mux.HandleFunc(pattern, h)
	}
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	hs := &http.Server{Handler: d}
	go hs.Serve(l)
	t.Cleanup(func() { hs.Close() })
	cfg.Client = client.New(client.Config{Socket: socket})
	return New(cfg), d
}

// agent is a client of a server.
func agent(t testing.TB, s *Server, o *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	here, there := sdk.NewInMemoryTransports()
	ss, err := s.mcp.Connect(t.Context(), there, nil)
	if err != nil {
		t.Fatal(err)
	}
	cs, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o).Connect(t.Context(), here, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close(); ss.Wait() })
	return cs
}

func said(r *sdk.CallToolResult) string {
	var text []string
	for _, c := range r.Content {
		if c, ok := c.(*sdk.TextContent); ok {
			text = append(text, c.Text)
		}
	}
	return strings.Join(text, "\n")
}

// hostile are names that want to be something else.
var hostile = []string{"../v1/daemon", "a/b", "a?b=c", "a#b", "a%2fb", "a%2e%2e", "..%2f..", "a\nb", "a\r\nX: 1", "ü b", "-rf", "$(id)", "a\x00b", strings.Repeat("a", 5000)}

// one matches a path with any id as its third part.
var one = regexp.MustCompile(`^[A-Z]+ /v1/(cells|runs|templates|receipts)/[^/?#\s]+(/(history|execs|eval|fork|branch|checkpoints|restore|stop|diff|files|policy|attach)(/[^/?#\s]+)?)?$`)

// names reports whether what was asked for names one thing; - is the latest of a
// directory, which no agent means.
func names(path string) bool {
	return one.MatchString(path) && !strings.Contains(path+"/", "/-/")
}

// A call of write_file without anything to write empties no file.
func TestWriteFileNeedsContent(t *testing.T) {
	s, d := serve(t, Config{}, map[string]http.HandlerFunc{"PUT /v1/cells/c/files": func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		answers(struct{}{})(w, r)
	}})
	cs := agent(t, s, nil)
	for _, args := range []map[string]any{{}, {"executable": true}, {"text": nil}} {
		args["cell"], args["path"] = "c", "x"
		r, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: "write_file", Arguments: args})
		if err != nil || !r.IsError || !strings.HasPrefix(said(r), "cannot write x: nothing") || len(d.take()) > 0 {
			t.Errorf("%v: %v, %+v", args, err, r)
		}
	}
	for _, args := range []string{`{"cell":"c","path":"x","path":"y","text":"t"}`, `{"cell":"c","path":"x","Path":"y","text":"t"}`} {
		if r, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: "write_file", Arguments: json.RawMessage(args)}); err == nil && !r.IsError {
			t.Errorf("%s was taken", args)
		}
	}
	r, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: "write_file", Arguments: map[string]any{"cell": "c", "path": "x", "text": ""}})
	if err != nil || r.IsError || len(d.take()) == 0 {
		t.Errorf("an empty file: %v, %+v", err, r)
	}
}

func TestE51NamesStayNames(t *testing.T) {
	s, d := serve(t, Config{}, nil)
	cs := agent(t, s, nil)
	calls := []struct{ tool, arg string }{{"show", "id"}, {"exec", "cell"}, {"eval", "cell"}, {"read_file", "cell"}, {"write_file", "cell"}, {"list_files", "cell"}, {"fork", "of"},
		{"branch", "cell"}, {"checkpoint", "cell"}, {"restore", "cell"}, {"diff", "cell"}, {"receipt", "id"}, {"kill", "cell"}}
	more := map[string]map[string]any{"exec": {"shell": "true"}, "eval": {"code": "1"}, "read_file": {"path": "x"}, "write_file": {"path": "x", "text": "x"}, "restore": {"checkpoint": 1}}
	for _, c := range calls {
		for _, name := range append([]string{".", "..", "", "-"}, hostile...) {
			args := map[string]any{c.arg: name}
			for k, v := range more[c.tool] {
				args[k] = v
			}
			r, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: c.tool, Arguments: args})
			if err != nil || !r.IsError || !strings.HasPrefix(said(r), "cannot ") {
				t.Errorf("%s of %q: %v, %+v", c.tool, name, err, r)
			}
			asked := d.take()
			for _, path := range asked {
				if !names(path) {
					t.Errorf("%s of %q asks %s", c.tool, name, path)
				}
			}
			if len(name) <= 2 && strings.Trim(name, ".-") == "" && len(asked) > 0 {
				t.Errorf("%s of %q asks %q", c.tool, name, asked)
			}
		}
	}
	for _, kind := range []string{"pando://runs/%s/stdout", "pando://runs/%s/diff", "pando://cells/%s/diff", "pando://cells/%s/files/x", "pando://receipts/%s", "pando://receipts/%s/statement", "pando://outputs/%s"} {
		for _, name := range hostile {
			if _, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: fmt.Sprintf(kind, name)}); err == nil {
				t.Errorf(kind+" is something", name)
			}
			for _, path := range d.take() {
				if !names(path) {
					t.Errorf(kind+" asks %s", name, path)
				}
			}
		}
	}
}

func TestC29CancelledCallsEnd(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan struct{})
	s, _ := serve(t, Config{}, map[string]http.HandlerFunc{"POST /v1/cells/{cell}/eval": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/jsonl")
		fmt.Fprintln(w, `{"stdout":"b25lCg=="}`)
		http.NewResponseController(w).Flush()
		close(begun)
		<-r.Context().Done()
		close(ended)
	}})
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan string, 10)
	cs := agent(t, s, &sdk.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { told <- r.Params.Message }})
	over := make(chan error)
	go func() {
		p := &sdk.CallToolParams{Name: "eval", Arguments: map[string]any{"cell": "c", "code": "1"}}
		p.SetProgressToken("p")
		_, err := cs.CallTool(ctx, p)
		over <- err
	}()
	<-begun
	if got := <-told; got != "one" {
		t.Errorf("on its way it tells %q", got)
	}
	cancel()
	if err := <-over; err == nil {
		t.Error("a call that was cancelled has an answer")
	}
	testenv.Receive(t, ended, "the end of what was cancelled")
}

// Pictures are content of their own; what is no picture is a text, and what is left out
// is said.
func TestEvaluationsAreRich(t *testing.T) {
	big := strings.Repeat("QUFB", mostPicture/4+1)
	result := fmt.Sprintf(`{"ok":true,"display":[{"text/plain":"<Figure>","image/png":"iVBORw=="},{"text/markdown":"**m**","text/html":"<b>m</b>"},{"text/html":"<i>h</i>"},{"text/plain":"<Large>","image/png":%q}],
		"value":{"type":"str","repr":"'xx","repr_cut":7,"json_cut":true,"mime":{"image/jpeg":"/9j/"}}}`, big)
	s, _ := serve(t, Config{}, map[string]http.HandlerFunc{"POST /v1/cells/{cell}/eval": func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"result":{"name":"c","result":%s}}`+"\n", strings.ReplaceAll(result, "\n", ""))
	}})
	r, err := agent(t, s, nil).CallTool(t.Context(), &sdk.CallToolParams{Name: "eval", Arguments: map[string]any{"cell": "c", "code": "x"}})
	if err != nil || r.IsError {
		t.Fatalf("%v %+v", err, r)
	}
	want := "**m**\n(text/html, 8 bytes)\n<Large>\n(image/png of 786435 bytes is left out: have the code write it to a file)\n'xx\n7 characters of the value are left out: have the code write it to a file\nits JSON is left out: it is too long or too deep"
	if got := said(r); got != want {
		t.Errorf("it says\n%s\nnot\n%s", got, want)
	}
	var pictures []string
	for _, c := range r.Content {
		if p, ok := c.(*sdk.ImageContent); ok {
			pictures = append(pictures, p.MIMEType+" "+string(p.Data[1:3]))
		}
	}
	if !slices.Equal(pictures, []string{"image/png PN", "image/jpeg \xd8\xff"}) {
		t.Errorf("its pictures are %q", pictures)
	}
}

// However many calls come at once, only so many are under way, and all are answered.
func TestManyCallsAtOnce(t *testing.T) {
	var now, most atomic.Int64
	some, much := strings.Repeat("QUFB", 8<<10), strings.Repeat("QUFB", 100<<10) // 24 and 300 KiB
	var calls atomic.Int64
	s, _ := serve(t, Config{}, map[string]http.HandlerFunc{"POST /v1/cells/{cell}/eval": func(w http.ResponseWriter, r *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(2 * time.Millisecond)
		out := some
		if calls.Add(1) <= 20 {
			out = much
		}
		fmt.Fprintf(w, "{\"stdout\":%q}\n{\"stdout\":%q}\n", out, out)
		fmt.Fprintf(w, `{"result":{"name":"c","result":{"ok":true,"value":{"type":"int","repr":"42","json":42}}}}`+"\n")
	}})
	cs := agent(t, s, nil)
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			r, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: "eval", Arguments: map[string]any{"cell": "c", "code": "42", "limit": 100}})
			if err != nil || r.IsError || !strings.HasSuffix(said(r), "42") {
				t.Errorf("%v %+v", err, r)
			}
		})
	}
	wg.Wait()
	if most.Load() > atOnce || most.Load() < 2 {
		t.Errorf("%d were under way at once", most.Load())
	}
	if s.room.left != collecting || len(s.busy) != 0 {
		t.Errorf("%d bytes of room are left of %d, and %d calls are under way, at the end", s.room.left, collecting, len(s.busy))
	}
	if s.out.bytes > kept {
		t.Errorf("%d bytes are kept", s.out.bytes)
	}
}

// What there is no room for is cut, not lost in silence: beginning, end and size are
// right.
func TestCollectorsShareRoom(t *testing.T) {
	r := room{left: 10}
	a, b := &collector{room: &r}, &collector{room: &r}
	for _, c := range []*collector{a, b} {
		for range 4 {
			c.add([]byte(strings.Repeat("x", maxLimit/2)))
		}
		c.add([]byte("end"))
	}
	for name, c := range map[string]*collector{"the first": a, "the second": b} {
		if c.bytes != 2*maxLimit+3 || !strings.HasSuffix(string(c.tail(10)), "xxxxxxxend") || len(c.b) < maxLimit {
			t.Errorf("%s has %d bytes, %d of them at its beginning, and ends with %q", name, c.bytes, len(c.b), c.tail(10))
		}
	}
	if len(a.b) != maxLimit+10 || len(b.b) != maxLimit || r.left != 0 {
		t.Errorf("of 10 bytes the first took %d and the second %d", len(a.b)-maxLimit, len(b.b)-maxLimit)
	}
}

// The user that sets the server up lends credentials, and no agent does.
func TestF09AgentsLendNothing(t *testing.T) {
	var lent []string
	var existing atomic.Bool
	take := func(w http.ResponseWriter, r *http.Request) {
		var req struct{ Credentials []string }
		json.NewDecoder(r.Body).Decode(&req)
		lent = append(lent, strings.Join(req.Credentials, ","))
		w.WriteHeader(http.StatusForbidden)
		json.NewEncoder(w).Encode(api.Error{Kind: "denied", Message: "cannot do it"})
	}
	s, _ := serve(t, Config{Credentials: []string{"gh", "npm"}, Dir: "/src"}, map[string]http.HandlerFunc{
		"POST /v1/cells": take, "POST /v1/runs": take,
		"GET /v1/cells/{cell}": func(w http.ResponseWriter, r *http.Request) {
			if !existing.Load() {
				w.WriteHeader(http.StatusNotFound)
				json.NewEncoder(w).Encode(api.Error{Kind: "not-found", Message: "cannot find it"})
				return
			}
			json.NewEncoder(w).Encode(api.Cell{ID: "c", Name: "mine"})
		},
	})
	cs := agent(t, s, nil)
	if got := cs.InitializeResult().Instructions; !strings.Contains(got, "gh, npm") {
		t.Errorf("agents are not told of what is lent: %s", got)
	}
	call := func(tool string, args map[string]any) {
		t.Helper()
		if _, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: args}); err != nil {
			t.Error(err)
		}
	}
	call("create", map[string]any{})
	call("run", map[string]any{"shell": "true"})
	call("run", map[string]any{"shell": "true", "cell": "new"})
	existing.Store(true)
	call("run", map[string]any{"shell": "true", "cell": "mine"}) // it has what it was lent
	if want := []string{"gh,npm", "gh,npm", "gh,npm", ""}; !slices.Equal(lent, want) {
		t.Errorf("lent are %q, not %q", lent, want)
	}
	for _, word := range []string{"credentials", "credential", "mounts", "policy", "with_secret", "caller_env", "place"} {
		for _, tool := range []string{"create", "run"} {
			r, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: map[string]any{"shell": "true", word: []string{"gh"}}})
			if err == nil && !r.IsError {
				t.Errorf("%s takes %s", tool, word)
			}
		}
	}
	if len(lent) != 4 {
		t.Errorf("what was refused was asked for: %q", lent[4:])
	}
}

func TestEndedRunsAreAnnounced(t *testing.T) {
	s, _ := serve(t, Config{}, map[string]http.HandlerFunc{"GET /v1/runs": answers([]api.Run{{ID: "r-1", Receipt: "x"}})})
	changed := make(chan struct{}, 100)
	cs := agent(t, s, &sdk.ClientOptions{ResourceListChangedHandler: func(context.Context, *sdk.ResourceListChangedRequest) { changed <- struct{}{} }})
	for i := range 2 * newest {
		s.announce(api.Run{ID: fmt.Sprint("r-", i)})
	}
	// The client subscribes in the background, and what ended before is no news. News in
	// quick succession are put off, so there is some only now and then.
	looked := 0
	testenv.Eventually(t, func() bool {
		if looked++; looked%50 == 0 {
			s.announce(api.Run{ID: fmt.Sprint("r-more-", looked)})
		}
		select {
		case <-changed:
			return true
		default:
			return false
		}
	}, "the news of a run")
	if len(s.ended) != newest {
		t.Errorf("%d runs are remembered", len(s.ended))
	}
	l, err := cs.ListResources(t.Context(), nil)
	if err != nil || len(l.Resources) != 3 { // stdout, diff, receipt
		t.Errorf("%v, %+v", err, l)
	}
}

// A name that JSON cannot hold is refused, and no other is taken for it.
func TestNamesThatAreNoText(t *testing.T) {
	h := Handler(Config{}, func(*http.Request) *client.Client { return client.New(client.Config{Socket: "none"}) })
	for arg, refused := range map[string]bool{`caf\udce9`: true, "caf\xe9": true, "café": false} {
		r := httptest.NewRequest("POST", "/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read","arguments":{"cell":"`+arg+`"}}}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(access.With(t.Context(), access.Principal{Level: access.Run})))
		if got := w.Code == http.StatusBadRequest && strings.Contains(w.Body.String(), "not UTF-8"); got != refused {
			t.Errorf("%q: %d %s", arg, w.Code, w.Body)
		}
	}
}
