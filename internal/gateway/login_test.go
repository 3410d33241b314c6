package gateway_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gateway/gatewaytest"
	"github.com/pando-dev/pando/internal/testenv"
)

// A login that was renewed ends no request; the next has the new token. An expired one goes nowhere, and the
// cell is told what renews it. A credential that was replaced, also by a login or by one from another file, ends
// requests with the value before.
func TestLoginRenewed(t *testing.T) {
	p := gatewaytest.Policy{Rules: []gatewaytest.Rule{{Effect: cell.Allow, Host: "slow.test", Credential: "trk"}}}
	login := trk("x-api-key: {secret}")
	login.For, login.Renew, login.Login, login.Expires = []string{"https://slow.test/**"}, "run `claude` once", "claude-1", time.Now().Add(time.Hour)
	b := newPinned(t, p, login)
	b.Record("slow.test. 60 IN A 203.0.113.7")
	arrived, answer := make(chan string, 1), make(chan bool)
	b.HTTPS("203.0.113.7:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- r.Header.Get("X-Api-Key")
		select {
		case <-answer:
		case <-r.Context().Done():
		}
		fmt.Fprint(w, "served")
	}), "slow.test")
	govern := func(l cell.Lent) {
		t.Helper()
		if err := b.Gateway.Govern(gatewaytest.With(p, l)(b.World, b.Authority)); err != nil {
			t.Fatal(err)
		}
	}
	send := func() <-chan string {
		said := make(chan string, 1)
		go func() {
			r, _ := http.NewRequest("GET", "https://slow.test/v1/x", nil)
			r.Header.Set("X-Api-Key", trkHeld)
			resp, err := b.client.Do(r)
			if err != nil {
				said <- "ended"
				return
			}
			resp.Body.Close()
			said <- resp.Status
		}()
		return said
	}
	arrives := func(want string) {
		t.Helper()
		if got, _ := testenv.Receive(t, arrived, "the request"); got != want {
			t.Errorf("it arrived with %q, want %q", got, want)
		}
	}
	says := func(said <-chan string, want string) {
		t.Helper()
		if got, _ := testenv.Receive(t, said, "the answer"); got != want {
			t.Errorf("the answer is %q, want %q", got, want)
		}
	}

	first := send()
	arrives(trkValue)
	login.Secret = "trk_renewed_mK2xQ9vLw8Zt3Rb6Yc1"
	govern(login)
	answer <- true
	says(first, "200 OK")
	second := send()
	arrives(login.Secret)
	answer <- true
	says(second, "200 OK")

	login.Expires = time.Now().Add(-time.Second)
	govern(login)
	if status, denial := b.send(t, "https://slow.test/v1/x", http.Header{"X-Api-Key": {trkHeld}}, nil); status != http.StatusForbidden || !strings.Contains(fmt.Sprint(denial), "expired at") || !strings.Contains(fmt.Sprint(denial), login.Renew) {
		t.Errorf("expired: %d %+v", status, denial)
	}

	login.Expires = time.Now().Add(time.Hour)
	other := login
	other.Secret, other.Login = "trk_other_mK2xQ9vLw8Zt3Rb6Yc1", "claude-2"
	stored := trk("x-api-key: {secret}")
	stored.For = login.For
	another := stored
	another.Secret = login.Secret
	for _, x := range []struct {
		what     string
		old, now cell.Lent
	}{
		{"a key by another", stored, another},
		{"a key by a login", stored, login},
		{"a login by a key", login, stored},
		{"a login by one from another file", login, other},
	} {
		govern(x.old)
		said := send()
		arrives(x.old.Secret)
		govern(x.now)
		var got string
		select {
		case answer <- true: // it goes on, or has not seen the end
			got, _ = testenv.Receive(t, said, "the answer")
		case got = <-said:
		}
		if got != "ended" {
			t.Errorf("%s: the answer is %q", x.what, got)
		}
	}
}
