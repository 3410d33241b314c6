package main

import (
	"fmt"
	"html"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/pando-dev/pando/bench"
)

// Measures of a chart, in pixels.
const (
	wide     = 780
	labels   = 170 // width of the names
	bars     = 470 // width of the longest bar
	barHigh  = 16
	barStep  = 24
	lineHigh = 16
	letters  = 112 // in a line of small text
)

// style serves light and dark pages: colours follow the reader's choice, the
// background is the page's.
const style = `
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
  .head { font-weight: 600; font-size: 15px } .case { font-weight: 600 } .small { font-size: 11.5px; fill: #59636e }
  .name { text-anchor: end } .ours { fill: #1a7f4b } .peer { fill: #9aa4af } .whisker { stroke: #59636e; stroke-width: 1.5 }
  .goal { stroke: #c2410c; stroke-width: 1.5; stroke-dasharray: 4 3 } .goaltext { fill: #c2410c; font-size: 11.5px } .us { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9198a1 } .ours { fill: #4ac586 } .peer { fill: #66707b } .whisker { stroke: #9198a1 }
    .goal { stroke: #fb923c } .goaltext { fill: #fb923c }
  }
`

// svg draws one axis: for each case a bar for each contestant (median), a
// whisker to its 90th percentile, and a dashed line at the goal. Each case has
// a linear scale of its own, from zero.
func svg(a found) string {
	var body strings.Builder
	y := 24
	text(&body, "head", 0, y, a.Title())
	for _, l := range wrap(a.About, letters) {
		y += lineHigh
		text(&body, "small", 0, y, l)
	}
	y += 8
	if why := a.of.Publishable(); why != "" {
		y += lineHigh
		text(&body, "goaltext", 0, y, "Not for publishing: "+why)
	}
	for i := range a.Cases {
		y = drawCase(&body, &a.Cases[i], y+26)
	}
	y += 12
	foot := fmt.Sprintf("Median, whisker to the 90th percentile, %d rounds. %s, %d cores, %s; load %.2f before. %s",
		a.of.Settings.Runs, a.of.Machine.CPU, a.of.Machine.Cores, a.of.Machine.FileSystem, a.LoadBefore[0], a.of.Started.Format("2006-01-02"))
	for _, l := range wrap(foot, letters) {
		y += lineHigh
		text(&body, "small", 0, y, l)
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">
<!-- Drawn by go run ./tools/benchchart from results/%s. Do not edit. -->
<title>%s</title>
<style>%s</style>
%s</svg>
`, wide+24, y+14, wide+24, y+14, html.EscapeString(a.Title()+": "+a.About), html.EscapeString(a.file), html.EscapeString(a.Title()+": "+a.About), style, body.String())
}

func text(b *strings.Builder, class string, x float64, y int, s string) {
	fmt.Fprintf(b, "<text class=%q x=\"%v\" y=\"%d\">%s</text>\n", class, x, y, html.EscapeString(s))
}

func drawCase(b *strings.Builder, c *bench.Case, y int) int {
	text(b, "case", 0, y, c.Name)
	for _, l := range wrap(c.What, letters) {
		y += lineHigh
		text(b, "small", 0, y, l)
	}
	most := 0.0
	for _, s := range c.Series {
		most = math.Max(most, s.Median)
	}
	goal, known := limit(c)
	if known && goal < 3*most {
		most = math.Max(most, goal)
	}
	if most == 0 {
		most = 1
	}
	scale := func(v float64) float64 { return math.Round(10*math.Min(v/most*bars, bars+14)) / 10 }
	y += 8
	top := y
	for _, s := range c.Series {
		y = drawBar(b, c, &s, y, scale)
	}
	if known {
		drawGoal(b, c, goal, top, y, goal <= most, scale)
	}
	return y + 4
}

// limit is the first goal of a case that is a number of its own, or else the
// one that hangs on a peer.
func limit(c *bench.Case) (float64, bool) {
	for _, g := range c.Goals {
		if g.Of == "" {
			return g.Limit, true
		}
	}
	for _, g := range c.Goals {
		if g.Met != nil {
			return g.Limit, true
		}
	}
	return 0, false
}

func drawBar(b *strings.Builder, c *bench.Case, s *bench.Series, y int, scale func(float64) float64) int {
	class, name := "peer", "name"
	if s.Ours {
		class, name = "ours", "name us"
	}
	long := math.Max(scale(s.Median), 1.5)
	middle := y + barHigh/2
	text(b, name, labels-10, middle+5, s.Name)
	fmt.Fprintf(b, "<rect class=%q x=\"%d\" y=\"%d\" width=\"%v\" height=\"%d\" rx=\"2\"/>\n", class, labels, y, long, barHigh)
	end := long
	if len(s.Samples) > 0 && s.P90 > s.Median {
		w := scale(s.P90)
		fmt.Fprintf(b, "<path class=\"whisker\" d=\"M%v %dH%vM%v %dv8\"/>\n", labels+long, middle, labels+w, labels+w, middle-4)
		end = math.Max(end, w)
	}
	value := bench.Number(s.Median, c.Unit)
	if s.Ratio > 0 {
		value += fmt.Sprintf("  (%.2g ×)", s.Ratio)
	}
	text(b, "value", math.Round(labels+end+8), middle+5, value)
	return y + barStep
}

// drawGoal draws the goal as a line, or says where it is when that is far
// outside.
func drawGoal(b *strings.Builder, c *bench.Case, goal float64, top, bottom int, inside bool, scale func(float64) float64) {
	label := "goal " + bench.Number(goal, c.Unit)
	if !inside {
		text(b, "goaltext", labels, bottom+8, label+": far to the right")
		return
	}
	x := labels + scale(goal)
	fmt.Fprintf(b, "<path class=\"goal\" d=\"M%v %dV%d\"/>\n", x, top-3, bottom-4)
	text(b, "goaltext", x+4, bottom+8, label)
}

// wrap breaks text into lines.
func wrap(s string, n int) (lines []string) {
	line := ""
	for _, w := range strings.Fields(s) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(w) > n {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += w
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
