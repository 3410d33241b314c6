package codex

import (
	"strings"
	"testing"
)

const config = `# mine
model = "gpt-x" # the large one
approval_policy = "never"
text = """
model_verbosity = "a part of a text"
"""
list = [ "a", # ]
  "b" ]
personality = "friendly"
[mcp_servers.docs]
command = "docs"
args = [
  "--port", "1", # with a [ in it
]
env = { KEY = "v" }
[mcp_servers.docs.env]
OTHER = "v"
[tui]
model_verbosity = "of a table"
`

func TestConfigIsTakenByParts(t *testing.T) {
	part, left := takeSettings([]byte(config))
	if want := "model = \"gpt-x\" # the large one\npersonality = \"friendly\"\n"; string(part) != want {
		t.Errorf("%q, not %q", part, want)
	}
	if got := strings.Join(left, ", "); got != "approval_policy, text, list, tui" {
		t.Errorf("left are %s", got)
	}
	servers, left := takeServers([]byte(config))
	if want := "[mcp_servers.docs]\ncommand = \"docs\"\nargs = [\n  \"--port\", \"1\", # with a [ in it\n]\n"; string(servers) != want {
		t.Errorf("%q, not %q", servers, want)
	}
	if got := strings.Join(left, ", "); got != "mcp_servers.docs.env, mcp_servers.docs.env" {
		t.Errorf("left are %s", got)
	}
	// Beside what is there: no key and no table comes twice, and keys come before tables.
	now := intoServers(intoSettings([]byte(head+"personality = \"of a table\"\n"), nil, part), nil, servers)
	if want := string(part) + head + "personality = \"of a table\"\n" + string(servers); string(now) != want {
		t.Errorf("the file is\n%s\nnot\n%s", now, want)
	}
	old := "model = \"own\"\n[mcp_servers.docs]\ncommand = \"own\"\n"
	if now := intoServers(intoSettings([]byte(old), nil, part), nil, servers); string(now) != "personality = \"friendly\"\n"+old {
		t.Errorf("the file is\n%s", now)
	}
	// Nor when the cell has added, since the first start, what the user then adds, too.
	added := "[mcp_servers.new]\ncommand = \"of the cell\"\n"
	put := string(part) + string(servers)
	more := append(append([]byte{}, servers...), "[mcp_servers.new]\ncommand = \"of the user\"\n[mcp_servers.other]\ncommand = \"o\"\n"...)
	if now, want := intoServers([]byte(put+added), servers, more), put+"[mcp_servers.other]\ncommand = \"o\"\n"+added; string(now) != want {
		t.Errorf("the file is\n%s\nnot\n%s", now, want)
	}
	if now, want := intoSettings([]byte(string(part)+"file_opener = \"own\"\n"), part, append(append([]byte{}, part...), "file_opener = \"x\"\n"...)), string(part)+"file_opener = \"own\"\n"; string(now) != want {
		t.Errorf("the file is\n%s\nnot\n%s", now, want)
	}
}
