package engine

import (
	"encoding/json"
	"slices"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/keeper/server"
)

// reportProcesses is how many processes a report lists.
const reportProcesses = 200

// processes puts the events about the processes of a run together.
type processes struct {
	out  api.Processes
	all  []*api.ReportProcess
	live map[int]*api.ReportProcess
}

// add takes an event, and reports whether it has its place in the list, so that no other list needs it.
func (p *processes) add(ev api.Event) bool {
	switch ev.Kind {
	case "process.exec":
		var f server.ExecFields
		if json.Unmarshal(ev.Fields, &f) != nil {
			return false
		}
		p.out.Starts++
		one := &api.ReportProcess{PID: f.PID, Parent: f.Parent, Args: f.Argv, Path: f.Path, Cut: f.Cut != 0, As: f.As, At: ev.Time}
		if p.live == nil {
			p.live = map[int]*api.ReportProcess{}
		}
		p.live[f.PID] = one
		p.all = append(p.all, one)
		return true
	case "process.ended":
		var f server.EndedFields
		if json.Unmarshal(ev.Fields, &f) != nil {
			return false
		}
		p.out.Ends++
		if f.Code != nil && *f.Code != 0 {
			p.out.Failed++
		}
		if one := p.live[f.PID]; one != nil {
			delete(p.live, f.PID)
			one.ExitCode, one.Signal, one.Ended = f.Code, f.Signal, true
			one.MS = max(ev.Time.Sub(one.At).Milliseconds(), 0)
		}
		return true
	case "process.lost":
		var f server.LostFields
		if json.Unmarshal(ev.Fields, &f) == nil {
			p.out.LostStarts += f.Starts
			p.out.LostEnds += f.Ends
			if !slices.Contains(p.out.Why, f.Why) && len(p.out.Why) < 8 {
				p.out.Why = append(p.out.Why, f.Why)
			}
		}
	case "process.unseen":
		var f server.UnseenFields
		if json.Unmarshal(ev.Fields, &f) == nil && len(p.out.Unseen) < 8 {
			p.out.Unseen = append(p.out.Unseen, f.What+": "+f.Why)
		}
	}
	return false
}

// listed is what the events told, nil if they told nothing of processes: those that did not exit with 0
// first, then by their start.
func (p *processes) listed() *api.Processes {
	o := &p.out
	if o.Starts+o.Ends == 0 && o.LostStarts+o.LostEnds == 0 && len(o.Unseen) == 0 && len(o.Why) == 0 {
		return nil
	}
	failed := func(one *api.ReportProcess) int {
		if one.ExitCode != nil && *one.ExitCode != 0 {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(p.all, func(a, b *api.ReportProcess) int { return failed(a) - failed(b) })
	o.List = []api.ReportProcess{}
	for i, one := range p.all {
		if i == reportProcesses {
			o.More = len(p.all) - i
			break
		}
		o.List = append(o.List, *one)
	}
	for _, l := range []*[]string{&o.Why, &o.Unseen} {
		if *l == nil {
			*l = []string{}
		}
	}
	return o
}
