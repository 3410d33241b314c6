package codex

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/agent/agenttest"
)

func TestAdapter(t *testing.T) { agenttest.Run(t, Adapter{}) }

// Codex has its task last, behind the options of exec.
func TestTask(t *testing.T) {
	argv, err := Adapter{}.Command(agent.Start{Prompt: "-x", Args: []string{"--json"}})
	want := []string{"codex", "exec", full, "--skip-git-repo-check", "--json", "--", "-x"}
	if err != nil || !slices.Equal(argv, want) {
		t.Errorf("%q, %v; want %q", argv, err, want)
	}
}

// With the login of an account, Codex has a login file of its placeholder, and its provider takes logins; a key after
// a start with one.
func TestAccount(t *testing.T) {
	e := base64.RawURLEncoding.EncodeToString
	token := "e30." + e([]byte(`{"https://api.openai.com/auth":{"chatgpt_account_id":"acc-1"}}`)) + ".pando"
	logins := Adapter{}.About().Logins
	start := agent.Start{Dir: "/src", Root: "/src", Login: logins[0], Env: []string{logins[0].Variables[0] + "=" + token}}
	made := map[string]string{}
	for _, f := range (Adapter{}).Files(start) {
		if f.Make != nil {
			made[f.Path] = string(f.Make(nil))
		}
	}
	auth := made[".codex/auth.json"]
	for _, want := range []string{`"account_id":"acc-1"`, `"access_token":"` + token + `"`, `"id_token":"` + token + `"`, `"auth_mode":"chatgpt"`, `"OPENAI_API_KEY":null`} {
		if !strings.Contains(auth, want) {
			t.Errorf("%s is not in the login file: %s", want, auth)
		}
	}
	config := made[".codex/config.toml"]
	if strings.Count(config, byAccount) != 1 || strings.Contains(config, byKey) {
		t.Errorf("the configuration is\n%s", config)
	}
	start.Login = logins[1]
	for _, f := range (Adapter{}).Files(start) {
		switch f.Path {
		case ".codex/auth.json":
			t.Error("with a key there is a login file")
		case ".codex/config.toml":
			if back := string(f.Make([]byte(config))); strings.Count(back, byKey) != 1 || strings.Contains(back, byAccount) {
				t.Errorf("with a key the configuration is\n%s", back)
			}
		}
	}
}
