package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/testenv"
)

// fullScreen is a program that draws its screen once, and then says what was typed. It notes
// when its terminal gets another size.
const fullScreen = `stty -echo
trap 'echo another >>sizes' WINCH
printf '\033[?1049h\033[2J\033[3;5HHELLO-SCREEN\033[10;1Hready'
while :; do
	read line || continue
	[ "$line" = quit ] && { printf '\033[?1049l'; exit 3; }
	printf "\033[5;5Hgot-$line\033[12;1H"
done
`

// What a program says of the keepers' protocol that it speaks.
const protocolNow, protocolNext, protocolFar = "pando keeper protocol 05", "pando keeper protocol 06", "pando keeper protocol 07"

// buildOf makes a directory with programs that say another version of the keepers' protocol, and
// returns the path of pando in it.
func (h *host) buildOf(name, says string) string {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join(filepath.Dir(built), "pandod"))
	h.must(err)
	if n := bytes.Count(text, []byte(protocolNow)); n != 1 {
		h.t.Fatalf("the program has its protocol's number %d times", n)
	}
	dir := filepath.Join(h.work, name)
	h.must(os.Mkdir(dir, 0o755))
	h.must(os.WriteFile(filepath.Join(dir, "pandod"), bytes.ReplaceAll(text, []byte(protocolNow), []byte(says)), 0o755))
	for _, beside := range []string{"pando-guest", "pando-runsc"} {
		if to, err := filepath.EvalSymlinks(filepath.Join(filepath.Dir(built), beside)); err == nil {
			h.must(os.Symlink(to, filepath.Join(dir, beside)))
		}
	}
	pando, err := os.ReadFile(built) // a link would find what is beside the original
	h.must(err)
	h.must(os.WriteFile(filepath.Join(dir, "pando"), pando, 0o755))
	return filepath.Join(dir, "pando")
}

// TestX39NextProtocol: a daemon of the next version of the keepers' protocol takes over the
// keepers of this one, with the terminals of their runs, and one of this version those of the next.
// One of the version after that is refused at once by the keepers of this one.
func TestX39NextProtocol(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, as := range []struct{ name, says string }{{"this", protocolNow}, {"next", protocolNext}, {"far", protocolFar}} {
		h.buildOf(as.name, as.says)
	}
	h.write("full", fullScreen)
	for _, c := range []struct{ from, to string }{{"this", "next"}, {"next", "this"}} {
		name := c.from + "-" + c.to
		h.bin = filepath.Join(h.work, c.from, "pando")
		h.pando("daemon", "stop")
		s := h.sit("run", "--cell", name, "--", "sh", "full")
		s.sees("ready")
		s.types("one\r")
		s.sees("got-one")
		s.kill()
		h.pando("daemon", "stop")

		h.bin = filepath.Join(h.work, c.to, "pando")
		s = h.sit("attach", name)
		s.sees("HELLO-SCREEN")
		s.sees("got-one")
		s.types("two\r")
		s.sees("got-two")
		if o := h.pando("exec", "-n", name, "--", "cat", "full"); o != fullScreen {
			t.Errorf("%s: a command in the cell says %q", name, o)
		}
		// Keepers without screens are asked in another way, which shakes the terminal.
		if o := h.pando("exec", "-n", name, "--", "sh", "-c", "cat sizes 2>/dev/null || echo one"); o != "one\n" {
			t.Errorf("%s: the terminal had other sizes meanwhile: %q", name, o)
		}
		s.types("quit\r")
		if code := s.ends(); code != 3 {
			t.Errorf("%s: exit code %d; on the screen:\n%s", name, code, s.text())
		}
		if r := h.run(name + ":latest"); r.ExitCode == nil || *r.ExitCode != 3 || strings.TrimSpace(r.Verdict) == "" {
			t.Errorf("%s: %+v", name, r)
		}
	}

	h.bin = filepath.Join(h.work, "this", "pando")
	h.pando("daemon", "stop")
	h.pando("run", "-d", "--cell", "old", "--", "sleep", "1000")
	testenv.Eventually(t, func() bool { return h.cell("old").Processes > 0 }, "start of the command")
	h.pando("daemon", "stop")
	h.bin = filepath.Join(h.work, "far", "pando")
	for _, args := range [][]string{{"exec", "old", "--", "true"}, {"eval", "old", "1"}, {"checkpoint", "old"}, {"stop", "old"}, {"stop", "--all"}, {"rm", "--yes", "old"}} {
		o := h.try(args...)
		if o.code == 0 || !strings.Contains(o.stderr, "speaks version 5") || !strings.Contains(o.stderr, "this daemon version 7") || !strings.Contains(o.stderr, "kill ") {
			t.Errorf("%v of a keeper two versions away: %+v", args, o)
		}
	}
	_, pid, _ := strings.Cut(h.try("exec", "old", "--", "true").stderr, "kill ")
	pid, _, _ = strings.Cut(pid, " ")
	h.sh("kill " + pid) // as the hint says
	testenv.Eventually(t, func() bool { return h.cell("old").State == "idle" }, "end of the cell")
	h.pando("exec", "old", "--", "true")
	h.pando("stop", "old")
	h.pando("daemon", "stop")
	h.bin = filepath.Join(h.work, "this", "pando")
	h.pando("stop", "--all")
	if left := h.leftovers(); len(left) > 0 {
		t.Errorf("left over: %s", strings.Join(left, "; "))
	}
}
