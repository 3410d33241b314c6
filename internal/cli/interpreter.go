package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// interpreterWord describes an interpreter in a word or two.
func interpreterWord(i *api.Interpreter) string {
	switch {
	case i == nil:
		return "–"
	case i.Ended != "":
		return "ended"
	case i.Busy:
		return i.Version + ", busy"
	}
	return i.Version
}

// showInterpreter prints the state of a cell's interpreter.
func (a *app) showInterpreter(w io.Writer, i *api.Interpreter) {
	if i == nil {
		return
	}
	text := interpreterWord(i)
	if i.Ended != "" {
		text = strings.TrimSpace(i.Version+" ended: ") + " " + i.Ended
	} else {
		text += fmt.Sprintf(", process %d, since %s", i.PID, ago(i.Started))
	}
	text += ", " + plural(int(i.Evals), "evaluation")
	if i.Memory > 0 {
		text += ", " + size(i.Memory) + " of its own"
	}
	field(w, "interpreter", text)
	if i.Template != "" {
		field(w, "template", i.Template)
	}
	if i.Depth > 0 {
		field(w, "depth", fmt.Sprintf("%d below the first of its family", i.Depth))
	}
}

// showCertificate prints the measurements of a fork, each with its observer.
func (a *app) showCertificate(w io.Writer, raw []byte) {
	var c cell.Certificate
	if len(raw) == 0 || json.Unmarshal(raw, &c) != nil {
		return
	}
	text := ago(c.At)
	if b := c.Battery; b.Total > 0 {
		text += fmt.Sprintf("; %d/%d canaries stopped", b.Passed, b.Total)
		if !b.At.IsZero() && c.At.Sub(b.At) > time.Second {
			text += fmt.Sprintf(", %s before", c.At.Sub(b.At).Round(time.Second))
		}
	}
	field(w, "forked", text)
	t := &table{w: w} // measurements are never cut
	for _, h := range c.Hazards {
		t.row("  "+h.Name, h.Seen, h.Value)
	}
	t.flush()
	for _, d := range c.Dropped {
		field(w, "left behind", d)
	}
}

// showOverview prints the usage of templates, pools and cells.
func (a *app) showOverview(w io.Writer, o api.Overview) {
	h := o.Host
	if h.Memory > 0 {
		text := fmt.Sprintf("%s of %s available", size(h.MemoryAvailable), size(h.Memory))
		if h.Reserved > 0 {
			text += ", " + size(h.Reserved) + " promised"
		}
		field(w, "memory", text)
	}
	if h.ProcessesMax > 0 {
		field(w, "processes", fmt.Sprintf("%d of %d", h.Processes, h.ProcessesMax))
	}
	if h.PooledMax > 0 {
		field(w, "pools", fmt.Sprintf("%d of at most %d ready", h.Pooled, h.PooledMax))
	}
	var states []string
	for s, n := range o.Cells {
		states = append(states, fmt.Sprintf("%d %s", n, s))
	}
	sort.Strings(states)
	if len(states) == 0 {
		states = []string{"none"}
	}
	field(w, "cells", strings.Join(states, ", "))
	if len(o.Ceilings) > 0 {
		fmt.Fprintln(w)
		a.showCeilings(w, o.Ceilings)
	}
	if len(o.Templates) > 0 {
		fmt.Fprintln(w)
		t := a.newTable(w)
		t.row("TEMPLATE", "STATE", "MEMORY", "CELLS", "PER CELL", "READY", "HITS", "OLDEST", "IDLE")
		for _, x := range o.Templates {
			hits, per, oldest := "–", "–", "–"
			if n := x.Hits + x.Misses; n > 0 {
				hits = fmt.Sprintf("%d of %d", x.Hits, n)
			}
			if x.PerCell > 0 {
				per = size(x.PerCell)
			}
			if x.Ready > 0 {
				oldest = (time.Duration(x.OldestMS) * time.Millisecond).Round(time.Second).String()
			}
			t.row(x.Template, x.State, size(x.Memory), fmt.Sprint(x.Cells), per, fmt.Sprintf("%d/%d", x.Ready, x.Wanted), hits, oldest,
				(time.Duration(x.IdleMS) * time.Millisecond).Round(time.Second).String())
		}
		t.flush()
	}
	if len(o.Stats) > 0 {
		fmt.Fprintln(w)
		list, more := slices.Clone(o.Stats), 0
		slices.SortStableFunc(list, func(x, y api.Stats) int { return cmp.Compare(y.Memory, x.Memory) })
		if a.terminalOut && len(list) > fewStats {
			list, more = list[:fewStats], len(list)-fewStats
		}
		a.showStats(w, list)
		if more > 0 {
			fmt.Fprintf(w, "and %d more, with less memory\n", more)
		}
	}
}

// showCeilings prints the ceilings of callers, and their usage.
func (a *app) showCeilings(w io.Writer, list []api.Ceiling) {
	t := a.newTable(w)
	t.row("CEILING", "CELLS", "WAITING", "REFUSED", "MEMORY", "CPUS", "PIDS", "DISK", "EGRESS", "KEPT", "BY")
	for _, c := range list {
		cells := fmt.Sprint(c.Cells)
		if c.MaxCells > 0 {
			cells = fmt.Sprintf("%d of %d", c.Cells, c.MaxCells)
		}
		limit := func(dflt, most float64, show func(float64) string) string { // the default, and the maximum
			switch {
			case dflt == 0 && most == 0:
				return "–"
			case dflt == 0 || dflt == most:
				return "≤ " + show(most)
			case most == 0:
				return show(dflt)
			}
			return show(dflt) + " ≤ " + show(most)
		}
		bytes := func(v float64) string { return size(int64(v)) }
		number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
		kept := "–"
		if d, err := time.ParseDuration(c.Keep); err == nil {
			if kept = d.String(); d%(24*time.Hour) == 0 {
				kept = fmt.Sprintf("%dd", d/(24*time.Hour))
			}
		}
		t.row(c.For, cells, fmt.Sprint(c.Waiting), fmt.Sprint(c.Refused), limit(float64(c.Default.Memory), float64(c.Max.Memory), bytes), limit(c.Default.CPUs, c.Max.CPUs, number),
			limit(float64(c.Default.PIDs), float64(c.Max.PIDs), number), limit(float64(c.Default.Disk), float64(c.Max.Disk), bytes), limit(float64(c.Default.Egress), float64(c.Max.Egress), bytes), kept, c.By)
	}
	t.flush()
}

// fewStats is the number of cells that are listed on a terminal.
const fewStats = 20

func (a *app) showStats(w io.Writer, stats []api.Stats) {
	t := a.newTable(w)
	t.row("CELL", "STATE", "PROCESSES", "MEMORY", "PEAK", "LIMIT", "CPU", "DISK")
	for _, s := range stats {
		counted := func(name, value string) string {
			if slices.Contains(s.Measured, name) {
				return value
			}
			return "–"
		}
		limit := "–"
		if s.MemoryMax > 0 {
			limit = size(s.MemoryMax)
		}
		t.row(s.Name, marked(s.State, s.Isolation), fmt.Sprint(s.Processes), counted("memory", size(s.Memory)), counted("peak_memory", size(s.PeakMemory)), limit,
			fmt.Sprintf("%.2f s", float64(s.CPU)/1e6), size(s.Disk))
	}
	t.flush()
}
