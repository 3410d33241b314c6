package main

import (
	"fmt"
	"strings"

	"github.com/pando-dev/pando/internal/evidence"
)

const eventsIntro = `# Events

What happened in a run, in order, as its keeper and its gateway recorded it:
` + "`pando events`, `GET /v1/runs/{run}/events`, and `events.jsonl` in a run's folder" + `.
Nothing that a command prints becomes an event.

Each line of ` + "`events.jsonl`" + ` has ` + "`seq`" + ` (from 1), ` + "`time`, `kind`, `fields`" + ` and ` + "`prev`" + `, the SHA-256
digest of the line before without its newline (of the first line: of the run's id). So the
last line stands for all; the receipt has the digest of the whole file. ` + "`pando events`" + `
checks both while it reads: what is wrong is said after what was whole, with exit code 7.

The API adds ` + "`run`, `text`" + ` (one line for people) and ` + "`denied`" + ` (the policy denied it, or it met
a limit). ` + "`--kind process`" + ` stands for all kinds that begin with ` + "`process.`" + `. The same in the
words of the Open Cybersecurity Schema Framework: [ocsf.md](ocsf.md).

The list grows; a program must take kinds and fields that it does not know.
`

// events is the reference of the kinds of events.
func events(kinds []evidence.EventKind) []byte {
	var b strings.Builder
	b.WriteString(eventsIntro)
	for _, k := range kinds {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| field | |\n|---|---|\n", k.Kind, k.Does)
		for _, f := range k.Fields {
			fmt.Fprintf(&b, "| `%s` | %s |\n", f.Name, f.Does)
		}
	}
	return []byte(b.String())
}
