package engine

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/testenv"
)

// What is told of runs that end, and of which nothing is: a client has seen the end of a short one.
func TestNoticesOfEnds(t *testing.T) {
	b := newBed(t, "f: x")
	got := make(chan api.Notice, 9)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var n api.Notice
		if err := json.NewDecoder(r.Body).Decode(&n); err != nil {
			t.Error(err)
		}
		got <- n
	}))
	defer srv.Close()
	begun := time.Now()
	none, three := 0, 3
	for _, x := range []struct {
		run  state.Run
		want string // of title, text and next; "": nothing is told
	}{
		{state.Run{Verdict: cell.Pending, ExitCode: &none, CellName: "web", Changes: state.Changes{Files: 2}}, "pando: web (app): a result waits for you | 2 file(s) changed: make it | pando diff r-1"},
		{state.Run{Verdict: cell.Accepted, ExitCode: &none, Reason: "no changes"}, "pando: r-1 (app): accepted | no changes: make it | pando show r-1"},
		{state.Run{Verdict: cell.Restored, ExitCode: &three, Ended: begun.Add(time.Minute), In: state.RunInternal{Attach: true}}, "pando: r-1 (app): failed | its changes were taken back (exit code 3): make it | pando logs r-1"},
		{state.Run{Verdict: cell.Restored, ExitCode: &three, Ended: begun.Add(9 * time.Second), In: state.RunInternal{Attach: true}}, ""},
		{state.Run{Verdict: cell.Discarded, Error: &state.Error{Message: "no such program"}}, "pando: r-1 (app): did not start | no such program: make it | pando show r-1"},
	} {
		r := x.run
		r.ID, r.Cell, r.Source, r.Command, r.Phase, r.Created = "r-1", "c-1", "/x/app", []string{"make", "it"}, cell.Ended, begun
		b.noticeOfEnd(b.ctx, &r) // has no way
		r.In.Notify = []string{srv.URL}
		if r.ExitCode != nil {
			r.In.After = "k-1"
		}
		b.noticeOfEnd(b.ctx, &r)
		if x.want == "" {
			b.work.Wait()
			if len(got) > 0 {
				t.Errorf("told: %+v", <-got)
			}
			continue
		}
		n, _ := testenv.Receive(t, got, "a notice")
		if text := strings.Join([]string{n.Title, n.Text, n.Next}, " | "); text != x.want || n.What != "ended" || n.Run != "r-1" || n.Cell != "c-1" || n.Verdict != string(r.Verdict) {
			t.Errorf("%+v, want %s", n, x.want)
		}
	}
}
