package gitdir

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/pando-dev/pando/internal/bound/boundtest"
)

// What we read of a config is what git reads of it.
func TestConfigAgreesWithGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git, as the oracle")
	}
	file := filepath.Join(t.TempDir(), "config")
	for _, conf := range []string{
		"[user]\n\tname = Ada Lovelace\n",
		"[user] name = Ada\n",
		"[USER]\r\n  NaMe=Ada L.\r\n",
		"[user]\nname = Ada # the first\n",
		"[user]\nname = \"Ada # L;\" ; the first\n",
		"[user]\nname = Ada \"Countess  of\"  Lovelace  \n",
		"[user]\nname = \"\"\n[user]\nname = A\\tb\\\\c\\\"d\n",
		"[user]\nname = Ada\\\n   Lovelace\n",
		"[user]\nname = \"Ada\\\n   Lovelace\"\n",
		"[user]\nname = one\nname = two\n[other]\nname = three\n",
		"[user \"work\"]\nname = work\n",
		"[user \"a]b\"]\nname = work\n[user]\nname = me\n",
		"[user.work]\nname = work\n",
		"[user]\nname=x",
		"[user]\nname\n",
		"[user]\n# name = no\n; name = no\nemail = a\n",
		"\xef\xbb\xbf[user]\nname = bom\n",
		"[user]\nname =\n",
		"[user]\nname =    \n",
		"[user]\nname = a  b c\n",
		"[user]name=glued[x]\n",
		"[include]\npath = other\n[user]\nname = n\n",
		"[user]\nname = Zoë 😀\n",
		"\n\n  [ user ]\nname = spaced\n",
		"[user]\nname = broken \\q\n",
		"[user]\nname = \"open\n",
		"name = none\n",
	} {
		if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("git", "config", "--file", file, "--get", "user.name")
		out, err := cmd.Output()
		if err != nil && cmd.ProcessState.ExitCode() != 1 {
			continue // git refuses the whole file
		}
		want := string(out)
		if err == nil {
			want = want[:len(want)-1]
		}
		if got := configValue([]byte(conf), "user.name"); got != want {
			t.Errorf("%q: %q, git says %q", conf, got, want)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte("[user]\n\tname = \"Ada\\\" \\\\ # L\" ; x\n"))
	f.Add([]byte("[a \"b\\\"]\"]\nc\n[user]name=\\\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		boundtest.Allocates(t, len(b), func() {
			c := configReader{rest: b}
			for n := 0; c.next(); n++ {
				if n > len(b) {
					t.Fatal("it does not end")
				}
			}
		})
	})
}
