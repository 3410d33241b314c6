package daemon

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/pando-dev/pando/api"
)

// The documentation page of the API: one HTML document without external parts, made from the
// description that GET /v1/openapi.json returns. It contains nothing about this installation,
// and needs no token.

//go:embed docs.css
var docsStyle string

//go:embed docs.js
var docsScript string

// docs answers with the page.
func (d *Daemon) docs(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	switch r.URL.Path {
	case "/": // for people with a browser
		http.Redirect(w, r, "/docs", http.StatusFound)
		return true
	case "/docs":
	default:
		return false
	}
	p := docsPage()
	h := w.Header()
	body, tag, coding := p.body, p.tag, codingOf(r.Header, "gzip")
	if coding != "" {
		body, tag = p.packed, strings.TrimSuffix(tag, `"`)+"-"+coding+`"`
	}
	h.Set("ETag", tag)
	h.Set("Vary", "Accept-Encoding")
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Security-Policy", p.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	if t, ok := readTags(r.Header.Get("If-None-Match")); ok && t.has(strings.Trim(p.tag, `"`)) {
		w.WriteHeader(http.StatusNotModified)
		return true
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	if coding != "" {
		h.Set("Content-Encoding", coding)
	}
	w.Write(body)
	return true
}

type docsDocument struct {
	body        []byte
	packed      []byte // the same, gzip: compressed once, since the page needs no token
	tag, policy string
}

var docsPage = sync.OnceValue(func() docsDocument {
	b := renderDocs(Routes)
	sum := sha256.Sum256(b)
	hash := func(s string) string {
		h := sha256.Sum256([]byte(s))
		return "'sha256-" + base64.StdEncoding.EncodeToString(h[:]) + "'"
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write(b)
	z.Close()
	return docsDocument{b, packed.Bytes(), `"` + hex.EncodeToString(sum[:16]) + `"`,
		"default-src 'none'; style-src " + hash(docsStyle) + "; script-src " + hash(docsScript) + "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}
})

// docsSchema is the part of JSON Schema that our types use.
type docsSchema struct {
	Ref         string                `json:"$ref"`
	Type        any                   `json:"type"` // a word, or several
	Description string                `json:"description"`
	Format      string                `json:"format"`
	Items       *docsSchema           `json:"items"`
	Properties  map[string]docsSchema `json:"properties"`
	More        *docsSchema           `json:"additionalProperties"`
}

// docsSpec is the part of the description that the page uses.
type docsSpec struct {
	Components struct {
		Schemas map[string]docsSchema `json:"schemas"`
	} `json:"components"`
}

// docsGroups are the sections of the page in order, each by the prefix of its paths; the longest
// prefix wins.
var docsGroups = [...]struct{ Title, Begins string }{
	{"Cells", "/v1/cells"}, {"Files of a cell", "/v1/cells/{cell}/f"}, {"Files of a cell", "/v1/cells/{cell}/stat"}, {"Files of a cell", "/v1/cells/{cell}/list"},
	{"Files of a cell", "/v1/cells/{cell}/mkdir"}, {"Files of a cell", "/v1/cells/{cell}/rename"}, {"Files of a cell", "/v1/cells/{cell}/watch"},
	{"Cells", "/v1/cells/{cell}/fork"}, {"Cells", "/v1/cells/{cell}/stats"},
	{"Commands and ports of a cell", "/v1/cells/{cell}/exec"}, {"Commands and ports of a cell", "/v1/execs"}, {"Commands and ports of a cell", "/v1/cells/{cell}/eval"},
	{"Commands and ports of a cell", "/v1/cells/{cell}/ports"}, {"Commands and ports of a cell", "/v1/cells/{cell}/processes"},
	{"Runs", "/v1/runs"}, {"Runs", "/v1/plans"}, {"Operations", "/v1/operations"}, {"Templates", "/v1/templates"}, {"Images", "/v1/images"},
	{"Policy", "/v1/policies"}, {"Policy", "/v1/runs/{run}/policy"}, {"Credentials and approvals", "/v1/credentials"}, {"Credentials and approvals", "/v1/approvals"},
	{"Receipts", "/v1/receipts"}, {"Receipts", "/v1/key"}, {"Tokens", "/v1/tokens"}, {"The daemon and its host", "/"},
}

func docsGroup(path string) string {
	title, n := "", -1
	for _, g := range docsGroups {
		if strings.HasPrefix(path, g.Begins) && len(g.Begins) > n {
			title, n = g.Title, len(g.Begins)
		}
	}
	return title
}

// docsWriter builds the page; text escapes what is not markup.
type docsWriter struct {
	strings.Builder
	spec docsSpec
}

// put writes markup with escaped arguments.
func (p *docsWriter) put(markup string, args ...any) {
	for i, a := range args {
		args[i] = html.EscapeString(fmt.Sprint(a))
	}
	fmt.Fprintf(p, markup, args...)
}

// ticked writes a sentence in which `words` are code.
func (p *docsWriter) ticked(s string) {
	for i, part := range strings.Split(s, "`") {
		if i%2 == 1 {
			p.put("<code>%s</code>", part)
		} else {
			p.put("%s", part)
		}
	}
}

func renderDocs(routes []Route) []byte {
	p := &docsWriter{}
	if err := json.Unmarshal(api.OpenAPI, &p.spec); err != nil {
		panic(err) // it is built in
	}
	of := map[string][]Route{}
	var titles []string
	for _, g := range docsGroups {
		if !slices.Contains(titles, g.Title) {
			titles = append(titles, g.Title)
		}
	}
	for _, r := range routes {
		path, _ := r.Split()
		of[docsGroup(path)] = append(of[docsGroup(path)], r)
	}
	p.WriteString(`<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>pando: the API</title><style>` +
		docsStyle + `</style></head><body><nav><h1>pando: the API</h1><input type="search" id="search" placeholder="Search ( / )" aria-label="Search" autocomplete="off"><div>`)
	p.put(`<a href="#%s">Beginning</a>`, "beginning")
	for i, t := range titles {
		p.put(`<a href="#part-%v">%v<small>%v</small></a>`, i, t, len(of[t]))
	}
	p.put(`<a href="#errors">Errors<small>%v</small></a><a href="#types">Types<small>%v</small></a></div></nav><main>`, len(api.Reasons), len(p.spec.Components.Schemas))
	p.WriteString(docsBeginning)
	p.WriteString(`<p id="none" hidden>Nothing is found.</p>`)
	for i, t := range titles {
		p.put(`<section><h2 id="part-%v">%v</h2>`, i, t)
		for _, r := range of[t] {
			p.route(r)
		}
		p.WriteString(`</section>`)
	}
	p.WriteString(`<section><h2 id="errors">Errors</h2><p>Whatever is not a success is answered with an <a href="#type-Error">Error</a>: the kind for programs, a sentence for people, and what to do about it.</p><div class="wide"><table><tr><th>Kind</th><th>Status</th><th>Meaning</th></tr>`)
	for _, r := range api.Reasons {
		p.put(`<tr><td><code>%s</code></td><td>%v</td><td>%s</td></tr>`, r.Kind, r.Status, r.Says)
	}
	p.WriteString(`</table></div></section><section><h2 id="types">Types</h2>`)
	for _, name := range sortedKeys(p.spec.Components.Schemas) {
		s := p.spec.Components.Schemas[name]
		p.put(`<details class="type" id="type-%s"><summary><span class="path">%s</span><span class="does">`, name, name)
		p.ticked(s.Description)
		p.WriteString(`</span></summary><div class="inside">`)
		p.fields(s)
		p.WriteString(`</div></details>`)
	}
	p.WriteString(`</section></main><script>` + docsScript + `</script></body></html>`)
	return []byte(p.String())
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.ToLower(a), strings.ToLower(b)), cmp.Compare(a, b))
	})
	return keys
}

// docsID is where a route is on the page.
func docsID(r Route) string {
	path, _ := r.Split()
	return strings.ToLower(r.Method) + strings.NewReplacer("/", ".", "{", "", "}", "").Replace(strings.TrimPrefix(path, "/v1"))
}

// route writes one route.
func (p *docsWriter) route(r Route) {
	path, query := r.Split()
	p.put(`<details id="%s"><summary><span class="method %s">%s</span><span class="path">%s</span><span class="scope" title="what a token must be allowed to do">%s</span><span class="does">`,
		docsID(r), strings.ToLower(r.Method), r.Method, path, r.Access)
	p.ticked(r.Does)
	p.WriteString(`</span></summary><div class="inside">`)
	words := PathWords(path)
	heads := Headers(r)
	if len(words)+len(query)+len(heads) > 0 {
		p.WriteString(`<h3>Parameters</h3><div class="wide"><table>`)
		for _, x := range []struct {
			in    string
			names []string
		}{{"path", words}, {"query", query}} {
			for _, name := range x.names {
				p.put(`<tr><td><code>%s</code></td><td>%s, %s</td><td>`, name, x.in, Params[name].Type)
				p.ticked(Params[name].Does)
				p.WriteString(`</td></tr>`)
			}
		}
		for _, h := range heads {
			p.put(`<tr><td><code>%s</code></td><td>header</td><td>`, h.Name)
			p.ticked(h.Does)
			p.WriteString(`</td></tr>`)
		}
		p.WriteString(`</table></div>`)
	}
	if in := typeName(r.In); in != "" {
		p.put(`<h3>Body: <a href="#type-%s">%s</a></h3>`, in, in)
		p.fields(p.spec.Components.Schemas[in])
	} else if r.Takes != "" {
		p.put(`<h3>Body</h3><p><code>%s</code></p>`, r.Takes)
	}
	p.WriteString(`<h3>Answer</h3><p>`)
	out := typeName(r.Out)
	switch {
	case r.Gives == WebSocket:
		p.WriteString(`A WebSocket.`)
	case r.Gives != "" && r.Gives != Lines:
		p.put(`<code>%s</code>`, r.Gives)
	case out == "":
		p.WriteString(`Nothing but that it is done.`)
	}
	if out != "" {
		if strings.HasPrefix(fmt.Sprintf("%T", r.Out), "[]") {
			p.WriteString(`A list of `)
		}
		p.put(`<a href="#type-%s">%s</a>`, out, out)
	}
	if r.Gives == Lines {
		p.WriteString(`, or with <code>Accept: application/jsonl</code> lines of <a href="#type-StreamLine">StreamLine</a> while it is done`)
	}
	if r.Operation() != "" {
		p.WriteString(`; with <code>Prefer: respond-async</code>, 202 and an <a href="#type-Operation">Operation</a>`)
	}
	p.WriteString(`</p>`)
	if out != "" {
		p.fields(p.spec.Components.Schemas[out])
	}
	p.put(`<h3>Example</h3><pre>%s</pre></div></details>`, docsExample(r))
}

// typeName is the name of the type of a value of package api, or of its items.
func typeName(v any) string {
	if v == nil {
		return ""
	}
	name := strings.TrimLeft(fmt.Sprintf("%T", v), "[]*")
	return name[strings.LastIndex(name, ".")+1:]
}

// fields writes what a type has.
func (p *docsWriter) fields(s docsSchema) {
	if len(s.Properties) == 0 {
		return
	}
	p.WriteString(`<div class="wide"><table>`)
	for _, name := range sortedKeys(s.Properties) {
		f := s.Properties[name]
		p.put(`<tr><td><code>%s</code></td><td>`, name)
		p.kind(f)
		p.WriteString(`</td><td>`)
		p.ticked(f.Description)
		p.WriteString(`</td></tr>`)
	}
	p.WriteString(`</table></div>`)
}

// kind writes what a value is.
func (p *docsWriter) kind(s docsSchema) {
	var words []string
	switch t := s.Type.(type) {
	case string:
		words = []string{t}
	case []any:
		for _, w := range t {
			words = append(words, fmt.Sprint(w))
		}
	}
	words = slices.DeleteFunc(words, func(w string) bool { return w == "null" })
	switch {
	case s.Ref != "":
		name := s.Ref[strings.LastIndex(s.Ref, "/")+1:]
		p.put(`<a href="#type-%s">%s</a>`, name, name)
	case s.Items != nil:
		p.WriteString(`list of `)
		p.kind(*s.Items)
	case s.More != nil && s.More.Type != nil:
		p.WriteString(`map to `)
		p.kind(*s.More)
	case s.Format == "date-time":
		p.WriteString(`time`)
	case len(words) == 0:
		p.WriteString(`any JSON`)
	default:
		p.put(`%s`, strings.Join(words, " or "))
	}
}

const docsBeginning = `<h2 id="beginning">Beginning</h2>
<p>What the command line does, any program can do: it uses nothing but this. The same description, for machines, is <a href="/v1/openapi.json"><code>/v1/openapi.json</code></a> (OpenAPI 3.1; it asks for a token, as everything does but this page).</p>
<pre>export PANDO_HOST=http://127.0.0.1:7070 PANDO_TOKEN=pando_…      # pando serve prints both
curl "$PANDO_HOST/v1/cells" -H "Authorization: Bearer $PANDO_TOKEN"</pre>
<p>The scope of a token is <code>read</code>, <code>run</code> or <code>admin</code>, each with all that the one before it may; a route names the least that it needs. What names something of the daemon's host, such as a directory to import, needs <code>admin</code>. On the unix socket no token is needed.</p>
<p>Lists have pages: <code>limit</code>, and <code>cursor</code> with the <code>X-Next-Cursor</code> of the answer before. A POST with an <code>Idempotency-Key</code> is done once, however often it comes. Each answer has an <code>X-Request-Id</code>, which the audit log has, too. Unknown fields of a body are refused.</p>`
