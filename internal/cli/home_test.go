package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/agent/catalog"
)

// A home of a user that is careless, or of one that another has written to: what comes along is
// what the list says, and no canary.
func TestHomeIsReadByTheList(t *testing.T) {
	const canary = "CANARY"
	home := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	write := func(p, text string, mode os.FileMode) {
		t.Helper()
		p = filepath.Join(home, p)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, p string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(home, p)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(outside, []byte(canary), 0o644); err != nil {
		t.Fatal(err)
	}
	write(".claude/settings.json", `{"model":"m","hooks":{"x":"`+canary+`"},"env":{"K":"`+canary+`"}}`, 0o644)
	write(".claude.json", `{"oauthAccount":"`+canary+`","mcpServers":{"docs":{"command":"docs","env":{"K":"`+canary+`"}}}}`, 0o600)
	write(".claude/.credentials.json", canary, 0o600)
	write(".claude/history.jsonl", canary, 0o600)
	write(".claude/skills/pdf/SKILL.md", "Make a PDF.", 0o644)
	write(".claude/skills/pdf/make.sh", "#!/bin/sh\n", 0o755)
	write(".claude/skills/pdf/.env", "K="+canary, 0o644)
	write(".claude/skills/pdf/id_rsa", canary, 0o600)
	write(".claude/skills/.git/config", canary, 0o644)
	write(".claude/skills/large.bin", strings.Repeat("x", maxHomeFile+1), 0o644)
	write("dotfiles/CLAUDE.md", "Be brief.", 0o644)
	write(".ssh/config", canary, 0o600)
	link(filepath.Join(home, "dotfiles/CLAUDE.md"), ".claude/CLAUDE.md") // as many do
	link(outside, ".claude/skills/out.md")
	link("../../.ssh/config", ".claude/skills/key.md")
	link("nowhere", ".claude/skills/gone.md")
	link("..", ".claude/skills/loop")
	link(home, ".claude/skills/home")
	link("../../.config", ".claude/skills/config")
	write(".config/app/secret.txt", canary, 0o644)
	write("notes/private.md", canary, 0o644)
	link("../../../notes/private.md", ".claude/skills/pdf/notes.md") // as the author of a skill may like it
	link("../../../notes", ".claude/skills/pdf/more")
	link("SKILL.md", ".claude/skills/pdf/again.md")
	write("dotfiles/skill/SKILL.md", "Tidy up.", 0o644)
	link("../../dotfiles/skill", ".claude/skills/mine")
	if err := os.Mkdir(filepath.Join(home, ".claude/commands"), 0o755); err != nil {
		t.Fatal(err)
	}

	claude, _ := catalog.All().Find("claude")
	files, left, err := homeOf(home, claude, agent.Kinds())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		if strings.Contains(string(f.Content), canary) {
			t.Errorf("%s comes along with %s", f.Path, f.Content)
		}
		got = append(got, f.Kind+" "+f.Path)
		if f.Executable != (filepath.Base(f.Path) == "make.sh") {
			t.Errorf("%s is a program: %t", f.Path, f.Executable)
		}
	}
	want := []string{"settings .claude/settings.json", "skills .claude/skills/mine/SKILL.md", "skills .claude/skills/pdf/SKILL.md", "skills .claude/skills/pdf/again.md", "skills .claude/skills/pdf/make.sh", "memory .claude/CLAUDE.md", "servers .claude.json"}
	if !slices.Equal(got, want) {
		t.Errorf("these come along: %q", got)
	}
	for p, why := range map[string]string{
		".claude/settings.json": "env, hooks", ".claude.json": "docs.env", ".claude/skills/pdf/.env": "hidden", ".claude/skills/pdf/id_rsa": "SSH key", ".claude/skills/.git": "hidden",
		".claude/skills/large.bin": "more than 1.0 MiB", ".claude/skills/out.md": "a link that leads out of your home", ".claude/skills/key.md": "a link to what holds secrets", ".claude/skills/gone.md": "a link that leads nowhere",
		".claude/skills/pdf/notes.md": "a link that leads out of .claude/skills/pdf", ".claude/skills/pdf/more": "a link that leads out of .claude/skills/pdf",
		".claude/skills/loop": "a link to other files of an agent", ".claude/skills/home": "a link to other files of an agent", ".claude/skills/config": "a link to other files of an agent",
	} {
		if !slices.Contains(left, agent.Left{Path: p, Why: why}) {
			t.Errorf("%s is not named (%s): %v", p, why, left)
		}
	}
	if files, _, err := homeOf(home, claude, []string{agent.Memory}); err != nil || len(files) != 1 || string(files[0].Content) != "Be brief.\n" {
		t.Errorf("of memory alone: %v, %v", files, err)
	}
	if files, left, err := homeOf(home, claude, nil); err != nil || len(files)+len(left) > 0 {
		t.Errorf("of nothing: %v, %v, %v", files, left, err)
	}
}

// What comes along has bounds, however many files there are.
func TestHomeIsBounded(t *testing.T) {
	home := t.TempDir()
	dir := filepath.Join(home, ".claude/skills")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range maxHomeFiles + 2 {
		if err := os.WriteFile(filepath.Join(dir, strings.Repeat("a", 1+i%200)+string(rune('a'+i/200))), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	claude, _ := catalog.All().Find("claude")
	files, left, err := homeOf(home, claude, []string{agent.Skills})
	if err != nil || len(files) != maxHomeFiles || len(left) != 2 {
		t.Errorf("%d files, %d left, %v", len(files), len(left), err)
	}
}
