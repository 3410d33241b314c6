package cli

import (
	"fmt"
	"strings"

	"github.com/pando-dev/pando/api"
)

// maxNamed is how many of what was left out are named on stderr; the receipt
// has all.
const maxNamed = 5

// sayLeftOut names what the cell of a run did not get: paths of the source, and
// what the source points to outside itself. It names the secrets that the cell has
// because git tracks them.
func (a *app) sayLeftOut(run api.Run) {
	var names, tracked []string
	n, outside := 0, 0
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
	if n > 0 {
		if n > maxNamed {
			names = append(names, "…")
		}
		a.say("pando: left out: %s (%s); let one in with --with-secret PATH", strings.Join(names, ", "), plural(n, "path"))
	}
}

// leftOutWords says what was left out, why, and the flag that lets it in.
func leftOutWords(l api.LeftOut) string {
	text := printable(l.Path) + ": " + printable(l.Why)
	if l.Fix != "" {
		text += "; let it in with " + printable(l.Fix)
	}
	return text
}
