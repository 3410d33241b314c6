package backendtest

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// governed returns a governance that allows some hosts.
func (k *bench) governed(allow ...string) *cell.Governance {
	k.Helper()
	g := Allowing(k, allow...)
	g.Resolvers = []string{"127.0.0.1:9"} // without a server
	return g
}

// A cell with network is made with a gateway, or not at all. A cell without network has no
// policy to change.
func testNetwork(k *bench) {
	i, _ := k.cell()
	for what, err := range map[string]error{
		"Govern": i.Govern(k.ctx, *k.governed("a.test")),
		"Asked":  func() error { _, _, err := i.Asked(k.ctx, 0); return err }(),
		"Answer": i.Answer(k.ctx, cell.Answered{}),
	} {
		k.wantKind(what+" of a cell without a gateway", err, cell.Unsupported)
	}
	s := k.spec()
	s.Network = k.governed("a.test")
	if k.caps.Network != "" {
		i, err := k.b.Create(k.ctx, s)
		if err == nil {
			k.made = append(k.made, i)
		}
		k.wantKind("a cell that may talk, against Caps", err, cell.Unsupported)
		if cell.HintOf(err) == "" {
			k.Errorf("no remedy in: %v", err)
		}
		return
	}
	i = k.create(s)
	if got := i.Assurance().Network; !strings.HasPrefix(got, "gateway over ") {
		k.Errorf("network: %q", got)
	}
	st, c := k.run(i, "grep -c : /proc/net/dev; cat /proc/net/route")
	if st.Exit.Code != 0 || !strings.HasPrefix(c.stdout(), "2\n") || len(strings.Split(strings.TrimSpace(c.stdout()), "\n")) != 4 {
		k.Errorf("interfaces and routes: %+v, %s", st.Exit, c.stdout())
	}
	a := c.Process.Assurance().Canaries
	if a.Total == 0 || a.Passed != a.Total || !slices.Contains(a.Bites, "gateway") {
		k.Errorf("canaries: %+v", a)
	}

	list, version, err := i.Asked(k.ctx, 0)
	if err != nil || len(list) > 0 || version < 1 {
		k.Errorf("asked: %v, %d, %v", list, version, err)
	}
	short, cancel := context.WithTimeout(k.ctx, 50*time.Millisecond)
	defer cancel()
	if _, _, err := i.Asked(short, version); !errors.Is(err, context.DeadlineExceeded) {
		k.Errorf("asked for longer than its context lives: %v", err)
	}
	wider := k.governed("a.test", "*.pando-canary.invalid")
	k.must(i.Govern(k.ctx, *wider))
	if err := i.Govern(k.ctx, cell.Governance{Policy: json.RawMessage(`{"no":"policy"}`)}); err == nil {
		k.Error("governed by what is no policy")
	}
	// The previous policy still applies, for this daemon and the next.
	k.end()
	k.open()
	i, err = k.b.Attach(k.ctx, i.ID(), "")
	k.must(err)
	k.made[len(k.made)-1] = i
	_, c = k.run(i, "true")
	if got := c.Process.Assurance().Canaries.Skipped; !slices.Equal(got, []string{"a host by name"}) {
		k.Errorf("not tried: %v", got)
	}
	ask := cell.Asked{ID: "q-0000000000000000", Policy: cell.Sum(wider.Policy)}
	k.wantKind("an answer to something else", i.Answer(k.ctx, cell.Answered{Ask: ask, Effect: cell.Allow, Scope: "once"}), cell.Conflict)
	ask.Policy = cell.Sum(nil)
	k.wantKind("an answer under another policy", i.Answer(k.ctx, cell.Answered{Ask: ask, Effect: cell.Allow, Scope: "once"}), cell.Conflict)
}

// testNetworkPolicy: a cell is not made with an unreadable policy.
func testNetworkPolicy(k *bench) {
	if k.caps.Network != "" {
		return
	}
	s := k.spec()
	s.Network = &cell.Governance{Policy: json.RawMessage(`{"no":"policy"}`)}
	i, err := k.b.Create(k.ctx, s)
	if err == nil {
		k.made = append(k.made, i)
		k.Fatal("a cell was made with what is no policy")
	}
	k.nothingLeft()
}
