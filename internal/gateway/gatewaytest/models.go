package gatewaytest

import (
	"compress/gzip"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// testModels: what the answers of models say of their use is told with each, and as a sum since the
// gateway was opened, also where an answer is compressed against what was asked for. An answer that
// doesn't say it, or can't be read, is told as unseen, and reaches the cell as it is.
func testModels(t *testing.T, site joins) {
	b := Join(t, site(t), With(Policy{Rules: []Rule{{Effect: cell.Allow, Host: "model.test", Open: true}}}))
	b.Record("model.test. 60 IN A 203.0.113.1")
	const answer = `data: {"message":{"model":"m-1","usage":{"input_tokens":10,"cache_read_input_tokens":5}}}` + "\n\n" + `data: {"usage":{"output_tokens":3}}` + "\n\n"
	b.HTTPS("203.0.113.1:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch string(body) {
		case "compressed":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			io.WriteString(z, answer)
			z.Close()
		case "secret":
			w.Header().Set("Content-Encoding", "x-secret")
			io.WriteString(w, answer)
		case "silent":
			io.WriteString(w, "{}")
		case "refused":
			w.WriteHeader(http.StatusTooManyRequests)
			io.WriteString(w, answer)
		default:
			io.WriteString(w, answer)
		}
	}), "model.test")
	client := Client(b.Cell, b.Link, b.Trust)
	told := 0
	ask := func(method, path, what string, want *cell.ModelUse) {
		t.Helper()
		req, err := http.NewRequest(method, "https://model.test"+path, strings.NewReader(what))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept-Encoding", "gzip") // so that the client decodes nothing
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		res.Body.Close()
		if readable := what != "silent"; err != nil || readable && string(got) != answer {
			t.Errorf("%s: the cell has %q, %v", what, got, err)
		}
		told++
		var flows []Event
		for end := time.Now().Add(testenv.Patience()); len(flows) < told && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			flows = b.Events.All(func(e Event) bool { return e.Kind == "flow" && e.Flow.Method != "" })
		}
		if len(flows) != told {
			t.Fatalf("%s: there are %d flows", what, len(flows))
		}
		if m := flows[told-1].Flow.Model; (m == nil) != (want == nil) || m != nil && *m != *want {
			t.Errorf("%s: told is %+v, and not %+v", what, m, want)
		}
	}
	one := cell.ModelUse{Model: "m-1", Requests: 1, Input: 10, Output: 3, CacheRead: 5}
	ask("POST", "/v1/messages", "plain", &one)
	ask("POST", "/v1/messages", "compressed", &one)
	ask("POST", "/v1/messages", "refused", &one) // figures count whatever the status is
	ask("POST", "/v1/chat/completions", "silent", &cell.ModelUse{Requests: 1, Unseen: 1})
	ask("POST", "/v1/responses", "secret", &cell.ModelUse{Requests: 1, Unseen: 1})
	ask("POST", "/v1/messages/count_tokens", "plain", nil)
	ask("GET", "/v1/messages", "plain", nil)
	want := []cell.ModelUse{{Model: "m-1", Requests: 3, Input: 30, Output: 9, CacheRead: 15}, {Requests: 2, Unseen: 2}}
	var got []cell.Asked
	for end := time.Now().Add(testenv.Patience()); time.Now().Before(end); time.Sleep(5 * time.Millisecond) { // it is told after the event
		if got, _ = b.Gateway.Asked(); len(got) == 1 && slices.Equal(got[0].Used, want) {
			break
		}
	}
	if len(got) != 1 || got[0].ID == "" || !slices.Equal(got[0].Used, want) {
		t.Errorf("the sums are %+v", got)
	}
	note := cell.BudgetNote{What: "reached", Budget: "tokens", Text: "it is paused"}
	if err := b.Gateway.Answer(cell.Answered{Ask: cell.Asked{Budget: &note}}); err != nil {
		t.Fatal(err)
	}
	if e := b.Events.Wait(t, "of the budget", func(e Event) bool { return e.Kind == "budget" }); e.Budget != note {
		t.Errorf("the event is %+v", e.Budget)
	}
}
