package report

import (
	"fmt"
	"strings"

	"github.com/pando-dev/pando/api"
)

// processNumbers says how many processes are recorded.
func processNumbers(p *api.Processes) string {
	if p.Starts+p.Ends == 0 {
		return "Nothing is recorded of the processes that the command started."
	}
	return fmt.Sprintf("%s executed, and %s of processes, %d of them with another exit code than 0. Their backend reports this, and not the command.", count(p.Starts, "program"), count(p.Ends, "end"), p.Failed)
}

// processGaps says what is not recorded.
func processGaps(p *api.Processes) (list []string) {
	if p.LostStarts+p.LostEnds > 0 || len(p.Why) > 0 {
		list = append(list, fmt.Sprintf("%s and %s are counted, and not recorded: %s", count(int(p.LostStarts), "start"), count(int(p.LostEnds), "end"), strings.Join(p.Why, "; ")))
	}
	for _, u := range p.Unseen {
		list = append(list, "not seen: "+u)
	}
	return list
}

// processWords is the command of a process.
func processWords(p api.ReportProcess) string {
	words := strings.Join(p.Args, " ")
	if len(p.Args) == 0 {
		words = p.Path
	}
	if p.Cut {
		words += " …"
	}
	return words
}

func processFailed(p api.ReportProcess) bool { return p.ExitCode != nil && *p.ExitCode != 0 }

// processEnd is how a process ended.
func processEnd(p api.ReportProcess) string {
	switch {
	case !p.Ended:
		return "" // it executed something else, went on, or its end is lost
	case p.ExitCode == nil:
		return "ended"
	case p.Signal != "":
		return p.Signal
	}
	return fmt.Sprintf("exit %d", *p.ExitCode)
}

func markdownProcesses(b *strings.Builder, r *api.Report) {
	p := r.Processes
	if p == nil {
		return
	}
	b.WriteString("\n## Processes\n\n" + processNumbers(p) + "\n")
	if gaps := processGaps(p); len(gaps) > 0 {
		b.WriteString("\n")
		for _, g := range gaps {
			fmt.Fprintf(b, "- not complete: %s\n", text(g))
		}
	}
	if len(p.List) == 0 {
		return
	}
	b.WriteString("\n| pid | what | as | end |\n|---:|---|---|---|\n")
	for i, one := range p.List {
		if i == markdownLimit {
			fmt.Fprintf(b, "\nAnd %s: %s\n", count(len(p.List)-i+p.More, "more start"), code("pando events "+r.Run.ID+" --kind process.exec,process.ended"))
			break
		}
		fmt.Fprintf(b, "| %d | %s | %s | %s |\n", one.PID, cell(processWords(one)), cell(one.As), cell(processEnd(one)))
	}
}
