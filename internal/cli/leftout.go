package cli

import (
	"fmt"
	"strings"

	"github.com/pando-dev/pando/api"
)

// maxNamed is the number of left-out paths that are named on stderr; the receipt has all.
const maxNamed = 5

// sayLeftOut names what the cell of a run did not get: paths of the source, and links that lead
// out of it. It also names tracked secrets, both those that the cell has and those that were
// masked.
func (a *app) sayLeftOut(run api.Run) {
	var names, tracked, masked []string
	n, outside, history := 0, 0, false
	for _, l := range run.LeftOut {
		if l.Kind == "outside" {
			if outside++; outside <= maxNamed {
				a.say("pando: left out: %s", leftOutWords(l))
			}
			continue
		}
		if l.Kind == "tracked" {
			tracked = append(tracked, printable(l.Path))
			continue
		}
		if l.Masked {
			masked, history = append(masked, printable(l.Path)), history || l.History
			continue
		}
		if n++; n <= maxNamed {
			names = append(names, printable(l.Path))
		}
	}
	if outside > maxNamed {
		a.say("pando: left out: %s more that lead out of the source: pando receipt show %s", fmt.Sprint(outside-maxNamed), run.ID)
	}
	if k := len(tracked); k > 0 {
		if k > maxNamed {
			tracked = append(tracked[:maxNamed], "…")
		}
		a.say("pando: secrets in the cell, since git tracks them: %s (%s)", strings.Join(tracked, ", "), plural(k, "path"))
	}
	if k := len(masked); k > 0 {
		if k > maxNamed {
			masked = append(masked[:maxNamed], "…")
		}
		more := ""
		if history {
			more = "; git's objects in the cell have what was committed of them"
		}
		a.say("pando: masked, though git tracks them: %s (%s); let one in with --with-secret PATH%s", strings.Join(masked, ", "), plural(k, "path"), more)
	}
	if n > 0 {
		if n > maxNamed {
			names = append(names, "…")
		}
		a.say("pando: left out: %s (%s); let one in with --with-secret PATH", strings.Join(names, ", "), plural(n, "path"))
	}
}

// leftOutWords describes what was left out, why, and the flag that lets it in.
func leftOutWords(l api.LeftOut) string {
	text := printable(l.Path) + ": " + printable(l.Why)
	if l.History {
		text += "; git's objects in the cell have what was committed of it"
	}
	if l.Fix != "" {
		text += "; let it in with " + printable(l.Fix)
	}
	return text
}
