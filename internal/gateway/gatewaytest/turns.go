package gatewaytest

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
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
			case <-time.After(10 * time.Second):
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
