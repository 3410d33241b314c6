package spawn

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// certifyStrict is the one word of what a caller wants to be certified.
const certifyStrict = "strict"

// terms are what a caller wants of copies.
type terms struct {
	strict bool   // none is made that inherits generators of random numbers
	atFork string // a shell runs it in each before anything else of it goes on; "" for none
}

// atForkTimeout bounds the command of terms.atFork, and atForkLimit what is kept of its
// output, in bytes.
const (
	atForkTimeout = time.Minute
	atForkLimit   = 64 << 10
)

// termsOf reads the fields of a request.
func termsOf(certify, atFork string) (t terms, err error) {
	const opName = "spawn.certify"
	switch {
	case certify != "" && certify != certifyStrict:
		return t, cell.Errorf(cell.Invalid, opName, "give --certify strict, or leave it out", "cannot certify copies as %q", certify)
	case atFork != "" && strings.TrimSpace(atFork) == "", strings.Contains(atFork, "\x00"):
		return t, cell.Errorf(cell.Invalid, opName, "say what to run: --at-fork 'pkill -USR1 node'", "cannot run %q in each copy", atFork)
	}
	return terms{certify == certifyStrict, atFork}, nil
}

// filesAlone refuses a command for copies that begin with no process: nothing goes on in
// them that it could come before.
func (t terms) filesAlone(of string) error {
	if t.atFork == "" {
		return nil
	}
	return cell.Errorf(cell.Invalid, "spawn.certify", "leave out --at-fork, and run the command with pando exec",
		"cannot run a command at the fork of %s: only its files are copied, and no process goes on in a copy", of)
}

// first is the command that a copy begins with, nil for none. own are the variables that
// its adoption gives it.
func (t terms) first(base []string, own map[string]string, c *state.Cell) *cell.Start {
	if t.atFork == "" {
		return nil
	}
	var asked []string
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if v := own[name]; v != "" {
			asked = append(asked, name+"="+v)
		}
	}
	return &cell.Start{
		Process: cell.Process{Args: []string{"sh", "-c", t.atFork}, Env: cell.CommandEnv(base, asked, c.Setup.User, false, ""),
			Path: []string{"/bin/sh", "/usr/bin/sh"}, Workdir: c.Source},
		Timeout: atForkTimeout, LogLimit: atForkLimit,
	}
}

// adoption is that of a cell which goes on at a checkpoint of its own, or of a copy in
// which that is tried. base are the variables of its commands.
func (t terms) adoption(base []string, c *state.Cell, trial bool) cell.Adoption {
	return cell.Adoption{Hostname: c.Hostname(), Strict: t.strict, Trial: trial,
		First: t.first(base, map[string]string{"PANDO_CELL": c.Title()}, c)}
}

// final reports whether a copy that was refused so would be refused again.
func (t terms) final(err error) bool {
	switch cell.KindOf(err) {
	case cell.Unsupported:
		return t.strict
	case cell.Invalid:
		return t.atFork != ""
	}
	return false
}

// adoptError is the error of an adoption. Output of the command is in it.
func (m *Manager) adoptError(t terms, err error) error {
	if err == nil || t.atFork == "" {
		return err
	}
	if s := m.cfg.Redactor.String(err.Error()); s != err.Error() {
		return cell.Errorf(cell.KindOf(err), "spawn.adopt", cell.HintOf(err), "%s", s)
	}
	return err
}

// generators names, each once, what generators copies have in common with their source,
// and those that were renewed in them.
func generators(list []*child) (inherited, renewed []string) {
	once := func(names *[]string, more []string) {
		for _, n := range more {
			if !slices.Contains(*names, n) {
				*names = append(*names, n)
			}
		}
	}
	for _, ch := range list {
		once(&inherited, ch.cert.Inherited())
		once(&renewed, ch.cert.Renewed())
	}
	return inherited, renewed
}
