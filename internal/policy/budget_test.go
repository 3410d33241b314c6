package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

func TestBudgetsAreParsed(t *testing.T) {
	for s, want := range map[string]Budget{
		"time=2h":              {Time: 2 * time.Hour.Milliseconds()},
		"requests=500":         {Requests: 500},
		"tokens=200k, usd=0.5": {Tokens: 200_000, MicroUSD: 500_000},
		"usd=5,tokens=1.5M":    {Tokens: 1_500_000, MicroUSD: 5_000_000},
		"usd=0.000001":         {MicroUSD: 1},
	} {
		if got, err := ParseBudget(s); err != nil || got != want {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", ",", "time", "time=", "time=0", "time=0s", "time=-1h", "time=1", "time=999999999h", "time=20000000h", "requests=0", "requests=-1", "requests=1.5", "requests=5k",
		"requests=99999999999999999999", "tokens=0", "tokens=-5k", "tokens=1e9", "tokens=Inf", "tokens=NaN", "tokens=0.5", "tokens=99999999999999999999M", "usd=0", "usd=-1", "usd=0.0000001", "usd=$5", "usd=unlimited",
		"money=5", "usd=5,usd=6", "usd=5,", "5"} {
		if got, err := ParseBudget(s); cell.KindOf(err) != cell.Invalid {
			t.Errorf("%q is taken for %+v, %v", s, got, err)
		}
	}
}

// Of a budget each part has its layer: the least counts, and a flag can't ask for more.
func TestBudgetsAreMerged(t *testing.T) {
	host := Host{CPUs: 2, Memory: 4 << 30}
	f, err := ParseFile("p", []byte("version: 1\nlimits: {budget: 'time=2h,tokens=1M'}\n"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Merge(Defaults(host), f, Flags{Limits: FileLimits{Budget: "tokens=5k,usd=1"}})
	if want := (Budget{Time: 7_200_000, Tokens: 5000, MicroUSD: 1_000_000}); err != nil || r.Limits.Budget != want {
		t.Errorf("%+v, %v", r.Limits.Budget, err)
	}
	if a := strings.Join(r.Asked, " "); a != "budget" {
		t.Errorf("asked: %s", a)
	}
	if r, err := Merge(Defaults(host), nil, Flags{Limits: FileLimits{Budget: "time=1h"}}); err != nil || len(r.Asked) > 0 {
		t.Errorf("time, which every backend can count, is asked of it: %q, %v", r.Asked, err)
	}
	if o := r.Origins.Lines["limits.budget.time"]; o != "p:2" {
		t.Errorf("time is of %s", o)
	}
	if _, err := Merge(Defaults(host), f, Flags{Limits: FileLimits{Budget: "tokens=2M"}}); cell.KindOf(err) != cell.Denied || !strings.Contains(err.Error(), "limits tokens more than --budget asks for (p:2)") {
		t.Errorf("%v", err)
	}
	if strings.Contains(string(Defaults(host).Canonical()), "budget") {
		t.Error("policies without a budget have another digest")
	}
}
