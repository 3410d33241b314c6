package policy

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Each mode has its words, and an agent's own hosts, or a run's, have none.
func TestWordsOfDowngrades(t *testing.T) {
	for _, c := range []struct {
		mode  string
		allow []string
		start Start
		want  string
	}{
		{"strict", []string{"@anthropic"}, Start{Agent: true}, ""},
		{"strict", []string{"@openai"}, Start{Agent: true}, ""}, // one page of a host of @github
		{"strict", []string{"registry.npmjs.org:443"}, Start{Agent: true}, "network-registries"},
		{"strict", []string{"@npm"}, Start{}, ""},
		{"development", nil, Start{Agent: true}, "network-registries"},
		{"build", nil, Start{Agent: true}, "network-registries network-sources"},
		{"breakglass", nil, Start{Agent: true}, "network-open"},
		{"strict", []string{"host.pando.internal:9"}, Start{}, "network-host"},
		{"strict", nil, Start{Backend: "none", Trusts: true, Writable: true}, "backend-none repository-trusted root-writable"},
	} {
		more, err := AllowedBy(c.mode)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Merge(Defaults(Host{Memory: 1 << 30}), nil, Flags{Allow: append(more, c.allow...)})
		if err != nil {
			t.Fatal(err)
		}
		if c.start.Backend == "" {
			c.start.Backend = "namespace"
		}
		if got := strings.Join(r.Words(c.start), " "); got != c.want {
			t.Errorf("%s, %q: %q, want %q", c.mode, c.allow, got, c.want)
		}
	}
	if _, err := AllowedBy("loose"); err == nil {
		t.Error("loose is a mode")
	}
	r, err := Merge(Defaults(Host{Memory: 1 << 30}), nil, Flags{Mounts: []string{"/a:/a:rw"}, Secrets: []string{".env"}})
	if got := r.Words(Start{Backend: "namespace"}); err != nil || !slices.Equal(got, []string{"mount-writable", "secret-inside"}) {
		t.Errorf("%q, %v", got, err)
	}
	r.Files.Secrets, r.Home.Files = nil, []HomeFile{{Source: "/s", Target: "s", Secret: true}}
	if got := r.Words(Start{Backend: "namespace"}); !slices.Equal(got, []string{"mount-writable", "secret-inside"}) {
		t.Errorf("with a secret in the home: %q", got)
	}
}

// The page has each word.
func TestPageOfDowngrades(t *testing.T) {
	page, err := os.ReadFile("../../docs/howto/agents.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range Downgrades() {
		if row := "| `" + d.Word + "` | " + d.About + " |\n"; !strings.Contains(string(page), row) {
			t.Errorf("docs/howto/agents.md has no row %q", row)
		}
	}
}
