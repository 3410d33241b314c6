package gatewaytest

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// testTurns: the first byte of the answer that begins a turn waits until the turn was taken; what
// goes on in it, is sent again or asked by the agent for itself does not wait, and neither does
// anything where nothing is wanted of turns.
func testTurns(t *testing.T, site joins) {
	p := Policy{Rules: []Rule{{Effect: cell.Allow, Host: "model.test", Open: true}}}
	for _, wanted := range []bool{true, false} {
		b := Join(t, site(t), func(w *World, a cell.Authority) cell.Governance {
			g := With(p)(w, a)
			g.Turns = wanted
			return g
		})
		b.Record("model.test. 60 IN A 203.0.113.1")
		asked := make(chan struct{}, 8)
		b.HTTPS("203.0.113.1:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			asked <- struct{}{}
			w.Header().Set("Content-Type", "text/event-stream")
			if strings.Contains(string(body), "Look") {
				io.WriteString(w, `data: {"type":"tool_use"}`)
			}
			io.WriteString(w, "\n\n")
		}), "model.test")
		ask := func(tools int, messages ...string) chan error {
			out := make(chan error, 1)
			body := fmt.Sprintf(`{"messages":[%s],"tools":[{}%s]}`, strings.Join(messages, ","), strings.Repeat(",{}", tools))
			go func() {
				res, err := Client(b.Cell, b.Link, b.Trust).Post("https://model.test/v1/messages", "application/json", strings.NewReader(body))
				if err == nil {
					_, err = io.ReadAll(res.Body)
					res.Body.Close()
				}
				out <- err
			}()
			return out
		}
		ends := func(out chan error) {
			t.Helper()
			select {
			case err := <-out:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(testenv.Patience()):
				t.Fatal("the answer did not come")
			}
		}
		const first, reply, result, second = `{"role":"user","content":"Look."}`, `{"role":"assistant","content":[{"type":"tool_use"}]}`, `{"role":"user","content":[{"type":"tool_result"}]}`, `{"role":"user","content":"Thank you."}`
		takes := func(text string, out chan error) {
			t.Helper()
			if !wanted {
				ends(out)
				return
			}
			q := b.question(1)[0]
			if q.Turn == nil || q.Turn.Text != text {
				t.Fatalf("asked: %+v", q)
			}
			<-asked
			select {
			case err := <-out:
				t.Fatalf("the answer did not wait: %v", err)
			case <-time.After(50 * time.Millisecond):
			}
			if err := b.Gateway.Answer(cell.Answered{Ask: q}); err != nil {
				t.Fatal(err)
			}
			ends(out)
			if err := b.Gateway.Answer(cell.Answered{Ask: q}); cell.KindOf(err) != cell.NotFound {
				t.Errorf("taken twice: %v", err)
			}
			b.question(0)
		}
		takes("Look.", ask(2, first))
		ends(ask(2, first))                                 // again
		ends(ask(0, `{"role":"user","content":"Search."}`)) // by a part of the agent, while it waits for a tool
		ends(ask(2, first, reply, result))                  // it goes on
		takes("Thank you.", ask(2, first, reply, result, second))
		b.question(0)
	}
}

// coded encodes a body as a coding of HTTP does.
func coded(t *testing.T, coding, body string) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	switch coding {
	case "zstd":
		z, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		w = z
	case "gzip":
		w = gzip.NewWriter(&b)
	case "deflate":
		w = zlib.NewWriter(&b)
	default:
		return []byte(body)
	}
	io.WriteString(w, body)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// testCodedTurns: turns are seen in requests with encoded bodies. Each body arrives as it was sent, and one
// that can't be decoded, is cut off, expands without end or has an unknown encoding begins no turn.
func testCodedTurns(t *testing.T, site joins) {
	p := Policy{Rules: []Rule{{Effect: cell.Allow, Host: "model.test", Open: true}}}
	b := Join(t, site(t), func(w *World, a cell.Authority) cell.Governance {
		g := With(p)(w, a)
		g.Turns = true
		return g
	})
	b.Record("model.test. 60 IN A 203.0.113.1")
	got := make(chan [32]byte, 1)
	b.HTTPS("203.0.113.1:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		io.Copy(h, r.Body)
		got <- [32]byte(h.Sum(nil))
		io.WriteString(w, "{}")
	}), "model.test")
	ask := func(coding string, body []byte) chan error {
		out := make(chan error, 1)
		req, err := http.NewRequest("POST", "https://model.test/backend-api/codex/responses", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Encoding", coding)
		go func() {
			res, err := Client(b.Cell, b.Link, b.Trust).Do(req)
			if err == nil {
				_, err = io.ReadAll(res.Body)
				res.Body.Close()
			}
			out <- err
		}()
		return out
	}
	ends := func(what string, out chan error, body []byte) {
		t.Helper()
		select {
		case err := <-out:
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		case <-time.After(testenv.Patience()):
			t.Fatalf("%s: the answer did not come", what)
		}
		if sum := <-got; sum != sha256.Sum256(body) {
			t.Errorf("%s: another body arrived", what)
		}
	}
	prompt := func(text string) string {
		return fmt.Sprintf(`{"tools":[{}],"instructions":"%s","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"%s"}]}]}`, strings.Repeat("x", 300<<10), text)
	}
	for _, coding := range []string{"zstd", "gzip", "deflate", "identity"} {
		body := coded(t, coding, prompt("By "+coding))
		out := ask(coding, body)
		q := b.question(1)[0]
		if q.Turn == nil || q.Turn.Text != "By "+coding {
			t.Fatalf("%s: asked: %+v", coding, q)
		}
		select {
		case err := <-out:
			t.Fatalf("%s: the answer did not wait: %v", coding, err)
		case <-time.After(50 * time.Millisecond):
		}
		if err := b.Gateway.Answer(cell.Answered{Ask: q}); err != nil {
			t.Fatal(err)
		}
		ends(coding, out, body)
		b.question(0)
	}
	whole := coded(t, "zstd", prompt("Not seen")+strings.Repeat(" ", 1<<20)) // most of it is decoded before its end
	cut := whole[:len(whole)-5]
	wrong := bytes.Clone(whole)
	wrong[len(wrong)-1] ^= 1 // its sum
	bomb := coded(t, "zstd", `{"pad":"`+strings.Repeat("a", 64<<20)+`",`+prompt("Not seen")[1:])
	for _, c := range []struct {
		what, coding string
		body         []byte
	}{
		{"cut off", "zstd", cut}, {"with a wrong sum", "zstd", wrong}, {"not encoded as it says", "gzip", whole}, {"a bomb", "zstd", bomb},
		{"an unknown encoding", "br", whole}, {"two encodings", "gzip, zstd", whole}, {"no body", "zstd", nil},
	} {
		out := ask(c.coding, c.body)
		ends(c.what, out, c.body)
		b.question(0)
	}
}
