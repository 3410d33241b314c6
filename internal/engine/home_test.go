package engine

import (
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/agent/claude"
	"github.com/pando-dev/pando/internal/backend/mem"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
)

// A caller sends what it likes: of it comes what the adapter's list says, and the rest is refused
// or named.
func TestHomeOfARequestIsFiltered(t *testing.T) {
	p := &agentPlan{adapter: claude.Adapter{}}
	err := p.planHome([]api.HomeFile{
		{Kind: "settings", Path: ".claude/settings.json", Content: []byte(`{"model":"m","hooks":{"x":"RUNS"}}`)},
		{Kind: "servers", Path: ".claude.json", Content: []byte(`{"mcpServers":{"a":{"command":"x","env":{"K":"RUNS"}}}}`)},
		{Kind: "skills", Path: ".claude/skills/a/run.sh", Content: []byte("#!/bin/sh\n"), Executable: true},
		{Kind: "skills", Path: ".claude/skills/a/id_rsa", Content: []byte("RUNS")},
	})
	if err != nil || len(p.home) != 3 || strings.Join(p.brought(), " ") != "settings skills servers" {
		t.Fatalf("%+v, %v", p.home, err)
	}
	for _, piece := range p.home {
		if strings.Contains(string(piece.data), "RUNS") {
			t.Errorf("%s comes along as %s", piece.name, piece.data)
		}
	}
	if len(p.stays) != 3 || p.home[2].mode != 0o700 || string(p.start.Servers) != `{"mcpServers":{"a":{"command":"x"}}}`+"\n" {
		t.Errorf("stays: %q; mode %o; servers %s", p.stays, p.home[2].mode, p.start.Servers)
	}
	for name, list := range map[string][]api.HomeFile{
		"elsewhere":        {{Kind: "skills", Path: ".bashrc", Content: []byte("x")}},
		"of another kind":  {{Kind: "memory", Path: ".claude/settings.json", Content: []byte("{}")}},
		"out of a folder":  {{Kind: "skills", Path: ".claude/skills/../../.ssh/authorized_keys", Content: []byte("x")}},
		"out of the home":  {{Kind: "skills", Path: "/etc/passwd", Content: []byte("x")}},
		"twice":            {{Kind: "memory", Path: ".claude/CLAUDE.md", Content: []byte("x")}, {Kind: "memory", Path: ".claude/CLAUDE.md", Content: []byte("y")}},
		"too many":         make([]api.HomeFile, maxHomeFiles+1),
		"too many to hold": {{Kind: "skills", Path: ".claude/skills/a", Content: make([]byte, maxHomeBytes)}, {Kind: "skills", Path: ".claude/skills/b", Content: []byte("x")}},
	} {
		p := &agentPlan{adapter: claude.Adapter{}}
		if err := p.planHome(list); cell.KindOf(err) != cell.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Nothing of a policy's section home comes to a caller that may not name the host's files.
func TestHomeOfAPolicyIsForItsUser(t *testing.T) {
	of := policy.Result{Effective: policy.Effective{Home: policy.Home{Git: policy.GitIdentity{Name: "A", Email: "a@b"}, Files: []policy.HomeFile{{Source: "/etc/passwd", Target: "x"}}}}}
	for name, p := range map[string]*runPlan{"a caller": {confined: true}, "a cell of one": {cell: &state.Cell{Guest: true}}} {
		p.policy, p.backend = of, (&mem.Host{}).Open()
		if list, err := (&Engine{}).policyHome(p); err != nil || len(list) > 0 {
			t.Errorf("%s: %v, %v", name, list, err)
		}
	}
	of.Home.Files = nil
	if list, err := (&Engine{}).policyHome(&runPlan{policy: of, backend: (&mem.Host{}).Open()}); err != nil || len(list) != 1 {
		t.Errorf("the user: %v, %v", list, err)
	}
}
