package bench

import (
	"fmt"
	"slices"
	"time"
)

// Schema is the version of the document. Fields are added under the same
// number; one that changes its meaning raises it.
const Schema = 1

// Result is the document of `pando bench --json`. All times are milliseconds
// unless their name or unit says otherwise.
type Result struct {
	Schema   int               `json:"schema"`
	Started  time.Time         `json:"started"`
	TookS    float64           `json:"took_s"`
	Settings Settings          `json:"settings"`
	Machine  Machine           `json:"machine"`
	Versions map[string]string `json:"versions"` // pando, go, and each peer that was found
	Axes     []AxisResult      `json:"axes"`
}

// Settings are how it was measured.
type Settings struct {
	Runs    int     `json:"runs"`   // rounds that count
	Warmup  int     `json:"warmup"` // rounds before them that don't
	Quick   bool    `json:"quick"`  // small trees: not for publishing
	PauseMS float64 `json:"pause_ms"`
}

// AxisResult is what was found on one axis.
type AxisResult struct {
	Axis         string     `json:"axis"`
	Backend      string     `json:"backend,omitempty"` // that was asked for; none: the one that pando chooses
	About        string     `json:"about"`
	TookS        float64    `json:"took_s"`
	LoadBefore   [3]float64 `json:"load_before"`
	LoadAfter    [3]float64 `json:"load_after"`
	StealPercent float64    `json:"steal_percent"` // of all processor time, taken by other guests
	Cases        []Case     `json:"cases"`
	Absent       []Absent   `json:"absent"`
	Notes        []string   `json:"notes"`
	Error        string     `json:"error,omitempty"`
}

// Absent is a peer that was not measured.
type Absent struct {
	Peer string `json:"peer"`
	Why  string `json:"why"`
}

// Case is one workload, with all that ran it in the same rounds.
type Case struct {
	Name   string   `json:"case"`
	What   string   `json:"what"` // the clock: from when to when
	Unit   string   `json:"unit"` // "ms", or "×" for a relation of two other cases
	Series []Series `json:"series"`
	Goals  []Goal   `json:"goals"`
}

// Series is what one contestant needed.
type Series struct {
	Name    string   `json:"name"`
	Ours    bool     `json:"ours"`
	Command string   `json:"command,omitempty"`
	Lacks   []string `json:"lacks,omitempty"` // what ours does and this doesn't
	// Against is the series of ours that does the same in the same way, and
	// Ratio how many times its median this one's is; 0 where there is none.
	Against string  `json:"against,omitempty"`
	Ratio   float64 `json:"ratio,omitempty"`
	Summary
	Samples []float64 `json:"samples"`
	Parts   []Part    `json:"parts,omitempty"`
}

// Part is a part of the samples of a series, as pando itself timed it.
type Part struct {
	Name string `json:"name"`
	Summary
	Samples []float64 `json:"samples"`
}

// Goal is what a median is to be, and whether it is.
type Goal struct {
	Series string  `json:"series"`
	AtMost float64 `json:"at_most"`
	// Of is a peer: AtMost is then a multiple of its median.
	Of string `json:"of,omitempty"`
	// Limit is AtMost in the unit of the case; Met says whether the median is
	// within it, null when the peer was absent.
	Limit float64 `json:"limit"`
	Met   *bool   `json:"met"`
}

// Text is a goal for people: "≤ 25 ms", "≤ 0.2 × cp -a", "< crun run".
func (g Goal) Text(unit string) string {
	switch {
	case g.Of != "" && g.AtMost == 1:
		return "≤ " + g.Of
	case g.Of != "":
		return fmt.Sprintf("≤ %g × %s", g.AtMost, g.Of)
	}
	return "≤ " + number(g.AtMost, unit)
}

// absent names a peer that can't be measured.
func (a *AxisResult) absent(peer, why string) {
	if !slices.ContainsFunc(a.Absent, func(b Absent) bool { return b.Peer == peer }) {
		a.Absent = append(a.Absent, Absent{Peer: peer, Why: why})
	}
}

func (a *AxisResult) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(a.Notes, n) {
		a.Notes = append(a.Notes, n)
	}
}

// Case returns a case by name, nil if there is none.
func (a *AxisResult) Case(name string) *Case {
	for i := range a.Cases {
		if a.Cases[i].Name == name {
			return &a.Cases[i]
		}
	}
	return nil
}

// Find returns a series by name, nil if there is none.
func (c *Case) Find(name string) *Series {
	for i := range c.Series {
		if c.Series[i].Name == name {
			return &c.Series[i]
		}
	}
	return nil
}

// decide computes ratios, and which goals are met.
func (a *AxisResult) decide() {
	for i := range a.Cases {
		c := &a.Cases[i]
		for j := range c.Series {
			s := &c.Series[j]
			if o := c.Find(s.Against); o != nil && o.Median > 0 {
				s.Ratio = round(s.Median / o.Median)
			}
		}
		for j := range c.Goals {
			c.Goals[j].decide(c)
		}
	}
}

func (g *Goal) decide(c *Case) {
	s := c.Find(g.Series)
	g.Limit, g.Met = g.AtMost, nil
	if g.Of != "" {
		p := c.Find(g.Of)
		if p == nil {
			g.Limit = 0
			return
		}
		g.Limit = round(g.AtMost * p.Median)
	}
	if s != nil {
		met := s.Median <= g.Limit
		g.Met = &met
	}
}

// relate adds a case with the median of one of our series divided by that of another: how
// flat a curve is.
func (a *AxisResult) relate(name, what, series, over, under string, atMost float64) {
	x, y := a.Case(over), a.Case(under)
	if x == nil || y == nil {
		return
	}
	sx, sy := x.Find(series), y.Find(series)
	if sx == nil || sy == nil || sy.Median == 0 {
		return
	}
	v := round(sx.Median / sy.Median)
	a.Cases = append(a.Cases, Case{
		Name: name, What: what, Unit: "×", Goals: []Goal{{Series: series, AtMost: atMost}},
		Series: []Series{{Name: series, Ours: true, Summary: Summary{Median: v, P90: v, Min: v, Max: v}, Samples: []float64{}}},
	})
}
