package e2e

import (
	"bytes"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
)

// agentsPage is docs/howto/agents.md.
func agentsPage(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../docs/howto/agents.md")
	must(t, err)
	return string(b)
}

// lineOfPage returns a line of docs/howto/agents.md, as arguments; the page must have it
// verbatim.
func lineOfPage(t *testing.T, line string) []string {
	t.Helper()
	if !strings.Contains(agentsPage(t), "\n"+line+"\n") {
		t.Fatalf("docs/howto/agents.md has no line %q", line)
	}
	return strings.Fields(line)[1:]
}

// blockOfPage returns the block of shell of docs/howto/agents.md that begins so.
func blockOfPage(t *testing.T, start string) string {
	t.Helper()
	_, block, found := strings.Cut(agentsPage(t), "\n```\n"+start)
	block, _, closed := strings.Cut(block, "\n```")
	if !found || !closed {
		t.Fatalf("docs/howto/agents.md has no block that begins %q", start)
	}
	return start + block
}

// TestX38FlagsOfThePage: each row of the page's table of agents has flags with which a run may
// reach the host that its credential is for.
func TestX38FlagsOfThePage(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.write("f", "")
	rows := regexp.MustCompile("(?m)^\\| ([A-Z][\\w ]+) \\| `(--allow [^`]+)` \\|").FindAllStringSubmatch(agentsPage(t), -1)
	if len(rows) < 3 {
		t.Fatalf("the page has %d agents", len(rows))
	}
	for _, r := range rows {
		flags := strings.Fields(r[2])
		h.lend(flags[len(flags)-1], strings.Repeat("k", 40))
		o := h.exits(0, append(append([]string{"run"}, flags...), "--", "true")...)
		if strings.Contains(o.stderr, "lent in vain") || strings.Contains(o.stderr, "is unused") {
			t.Errorf("%s: with %s: %s", r[1], r[2], o.stderr)
		}
	}
}

// TestX38PrivateAddressOfThePage: the page's flags for a machine with a private address lead to
// it, by its address and by a name.
func TestX38PrivateAddressOfThePage(t *testing.T) {
	if !ownNetwork(t) {
		return
	}
	world(t, "10.1.2.3", "192.0.2.8")
	h := newHost(t)
	zone := newNames(t, "127.0.0.1:5300")
	zone.set("db.internal", "10.1.2.3")
	h.env = append(h.env, "PANDO_RESOLVER="+zone.addr)
	ln, err := net.Listen("tcp", "10.1.2.3:5432")
	must(t, err)
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("the database\n"))
			c.Close()
		}
	}()
	h.write("f", "")
	page := []byte(agentsPage(t))
	for host, flags := range map[string]string{"10.1.2.3": "--allow 10.1.2.3:5432", "db.internal": "--allow db.internal:5432 --allow 10.1.2.3:5432"} {
		if !bytes.Contains(page, []byte("`"+flags+"`")) {
			t.Errorf("docs/howto/agents.md has no %q", flags)
		}
		o := h.try(append(append([]string{"run"}, strings.Fields(flags)...), "--", "curl", "-s", "-m", "10", "telnet://"+host+":5432")...)
		if o.out != "the database\n" {
			t.Errorf("with %s, %s: exit code %d, %q\n%s", flags, host, o.code, o.out, o.stderr)
		}
	}
}
