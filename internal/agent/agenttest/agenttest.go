// Package agenttest is what every adapter of a coding agent fulfils.
package agenttest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/secret"
)

// Run tries an adapter.
func Run(t *testing.T, a agent.Adapter) {
	about := a.About()
	if about.Name == "" || about.Title == "" || about.Program == "" || about.Package == "" || len(about.Logins) == 0 {
		t.Fatalf("facts are missing: %+v", about)
	}
	if s := about.Setup; s != nil {
		t.Run("setup", func(t *testing.T) { setup(t, about, *s) })
	}
	t.Run("home", func(t *testing.T) { home(t, a) })
	if r, is := a.(agent.Reporter); is {
		t.Run("transcript", func(t *testing.T) { transcript(t, r) })
	}
	for _, l := range about.Logins {
		t.Run(l.Credential, func(t *testing.T) { login(t, a, l) })
	}
}

// setup tries the facts of a login that gives a token: that is one of the credential's.
func setup(t *testing.T, about agent.About, s agent.Setup) {
	if len(s.Args) == 0 || len(s.Allow) == 0 || len(s.Begins) < 8 || s.Least < 2*len(s.Begins) {
		t.Errorf("facts are missing: %+v", s)
	}
	for _, p := range s.Allow {
		if strings.HasPrefix(p, "@") && !slices.Contains(policy.Presets(), p) {
			t.Errorf("there is no preset %s", p)
		}
	}
	if !slices.ContainsFunc(about.Logins, func(l agent.Login) bool { return l.Credential == s.Credential }) {
		t.Errorf("%s is no login of its own", s.Credential)
	}
	if !slices.ContainsFunc(secret.Prefixes(s.Credential), func(p string) bool { return strings.HasPrefix(s.Begins, p) || strings.HasPrefix(p, s.Begins) }) {
		t.Errorf("a token that begins with %s is none of %s", s.Begins, s.Credential)
	}
}

// login tries an adapter with one of its logins.
func login(t *testing.T, a agent.Adapter, l agent.Login) {
	about := a.About()
	start := agent.Start{Dir: "/home/user/repo/sub", Root: "/home/user/repo", Env: []string{"HOME=/home/user"}, Login: l}
	for _, v := range l.Variables {
		start.Env = append(start.Env, v+"=sk-pando0123456789012345678901234567890123456789")
	}

	t.Run("about", func(t *testing.T) {
		if len(l.Allow) == 0 || len(l.Variables) == 0 {
			t.Errorf("facts are missing: %+v", l)
		}
		for _, p := range l.Allow {
			if strings.HasPrefix(p, "@") && !slices.Contains(policy.Presets(), p) {
				t.Errorf("there is no preset %s", p)
			}
		}
		c, ok := credential.WellKnown(l.Credential)
		if !ok {
			t.Errorf("credential %s is not well known: --for and --as would have to be given", l.Credential)
		}
		for _, v := range l.Variables {
			if !slices.Contains(c.Env, v) {
				t.Errorf("credential %s does not set %s", l.Credential, v)
			}
		}
	})

	t.Run("command", func(t *testing.T) {
		plain, err := a.Command(start)
		if err != nil || plain[0] != about.Program {
			t.Fatalf("%q, %v", plain, err)
		}
		task := start
		task.Prompt, task.Args = "tidy up", []string{"--model", "small"}
		with, err := a.Command(task)
		if err != nil || !slices.ContainsFunc(with, func(s string) bool { return strings.HasSuffix(s, "tidy up") }) || !slices.Contains(with, "small") {
			t.Errorf("with a task and an argument: %q, %v", with, err)
		}
		task.Prompt = "--tidy"
		if with, err := a.Command(task); err != nil || slices.Contains(with, "--tidy") && !slices.Contains(with, "--") {
			t.Errorf("a task is an option: %q, %v", with, err)
		}
		asks := start
		asks.Asks = true
		if prompting, err := a.Command(asks); err != nil || slices.Equal(prompting, plain) {
			t.Errorf("an agent that asks is started as one that does not: %q, %v", prompting, err)
		}
		again := start
		again.Continue = true
		if continued, err := a.Command(again); err != nil || slices.Equal(continued, plain) {
			t.Errorf("a conversation is continued as a new one begins: %q, %v", continued, err)
		}
		// What an adapter arranges is no argument of the user's.
		for _, arg := range plain[1:] {
			if !strings.HasPrefix(arg, "--dangerously") && !strings.HasPrefix(arg, "--yolo") {
				continue
			}
			undone := asks
			undone.Args = []string{arg}
			if argv, err := a.Command(undone); err == nil {
				t.Errorf("an agent that shall ask is started with %s: %q", arg, argv)
			}
		}
	})

	t.Run("environment", func(t *testing.T) {
		for _, kv := range a.Env(start) {
			if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || slices.Contains(l.Variables, name) {
				t.Errorf("%q is no variable of an adapter", kv)
			}
		}
	})

	// A server of the user's own is asked in place of the login's, whichever way its URL is written.
	t.Run("model server", func(t *testing.T) {
		for _, url := range []string{"http://models.test:4000", "http://models.test:4000/", "http://models.test:4000/v1"} {
			served := start
			served.Model = url
			argv, err := a.Command(served)
			if err != nil {
				t.Fatal(err)
			}
			told := strings.Join(append(argv, a.Env(served)...), "\n")
			if !strings.Contains(told, "http://models.test:4000") || strings.Contains(told, "/v1/v1") || strings.Contains(told, "4000//") {
				t.Errorf("with %s it is told\n%s", url, told)
			}
			for _, of := range []string{"api.anthropic.com", "api.openai.com", "googleapis.com"} {
				if strings.Contains(told, of) {
					t.Errorf("with %s it is told of %s:\n%s", url, of, told)
				}
			}
		}
	})

	t.Run("repository", func(t *testing.T) {
		task, trusts := start, start
		task.Prompt, trusts.Trusts = "tidy up", true
		off := a.Off(task)
		if len(off) == 0 || len(a.Off(trusts)) > 0 {
			t.Errorf("off are %q, and %q when the repository is trusted", off, a.Off(trusts))
		}
		for _, p := range off {
			if p != path.Clean(p) || path.IsAbs(p) || strings.HasPrefix(p, "..") {
				t.Errorf("%q is no path below a repository", p)
			}
		}
		// The same cell is started both ways, one after the other.
		for i, f := range a.Files(start) {
			if f.Link != "" {
				continue
			}
			once := f.Make(nil)
			for _, g := range a.Files(trusts) {
				if g.Path == f.Path {
					if back := f.Make(g.Make(bytes.Clone(once))); !bytes.Equal(back, once) {
						t.Errorf("file %d, %s, is not what it was after a start with trust:\n%s\n%s", i, f.Path, once, back)
					}
				}
			}
		}
	})

	t.Run("files", func(t *testing.T) {
		for _, f := range a.Files(start) {
			if f.Path != path.Clean(f.Path) || path.IsAbs(f.Path) || strings.HasPrefix(f.Path, "..") {
				t.Errorf("%q is no path below a home", f.Path)
			}
			if f.Link != "" {
				if f.Make != nil || !strings.HasPrefix(f.Link, start.Root+"/") {
					t.Errorf("%s leads to %s, which is not in the repository", f.Path, f.Link)
				}
				continue
			}
			first := f.Make(nil)
			if len(first) == 0 {
				t.Errorf("%s is empty", f.Path)
			}
			if second := f.Make(bytes.Clone(first)); !bytes.Equal(first, second) {
				t.Errorf("%s is not the same when it is made again:\n%s\n%s", f.Path, first, second)
			}
			for _, rubbish := range []string{"", "null", "[]", "1", `"x"`, "{", `{"projects":[]}`, `{"projects":{"/home/user/repo":7}}`, "\xff\x00"} {
				f.Make([]byte(rubbish)) // does not panic
			}
			deep := strings.Repeat(`{"a":[`, 4000) + strings.Repeat("0,", 1000) + "0" + strings.Repeat("]}", 4000)
			if made := f.Make([]byte(deep)); len(made) > 2*len(deep) {
				t.Errorf("%s: %d bytes of a cell become %d", f.Path, len(deep), len(made))
			}
			if !json.Valid(first) {
				continue
			}
			var kept map[string]any
			made := f.Make([]byte(`{"of the user": [1, 2], "projects": {"/elsewhere": {"x": 12345678901234567}}}`))
			if err := json.Unmarshal(made, &kept); err != nil || kept["of the user"] == nil || !bytes.Contains(made, []byte("12345678901234567")) {
				t.Errorf("%s loses what was in it: %s", f.Path, made)
			}
		}
	})
}

// home tries what an adapter brings of the user's home.
func home(t *testing.T, a agent.Adapter) {
	about, list := a.About(), a.Brings()
	if !slices.ContainsFunc(list, func(b agent.Bring) bool {
		return b.Kind == agent.Memory && b.Path == about.Memory && b.Into != nil && b.Take == nil
	}) {
		t.Errorf("%q, which is read before each conversation, is not in the list", about.Memory)
	}
	if !slices.Contains(policy.InstructionsFor(), about.Name) {
		t.Errorf("a policy has no instructions for %s", about.Name)
	}
	for i, b := range list {
		if !slices.Contains(agent.Kinds(), b.Kind) {
			t.Errorf("%s is of kind %q", b.Path, b.Kind)
		}
		p := strings.TrimSuffix(b.Path, "/")
		if p != path.Clean(p) || path.IsAbs(p) || strings.HasPrefix(p, "..") || p == "." {
			t.Errorf("%q is no path below a home", b.Path)
		}
		if slices.ContainsFunc(list[:i], func(o agent.Bring) bool { return o.Kind == b.Kind && o.Path == b.Path }) {
			t.Errorf("%s of kind %s is there twice", b.Path, b.Kind)
		}
		if isFolder := strings.HasSuffix(b.Path, "/"); isFolder == (b.Into != nil || b.Argument) || isFolder && b.Take != nil {
			t.Errorf("%s must be a folder, of which all comes as it is, or a file of which a part comes", b.Path)
		}
		if (b.Kind == agent.Settings || b.Kind == agent.Servers) && b.Take == nil && !strings.HasSuffix(b.Path, "/") {
			t.Errorf("all of %s comes along: what runs and logins with it", b.Path)
		}
		for _, login := range []string{".claude/.credentials.json", ".codex/auth.json", ".gemini/oauth_creds.json", ".gemini/google_accounts.json", ".gemini/.env", ".copilot/config.json",
			".config/gh/hosts.yml", ".config/github-copilot/apps.json", ".local/share/opencode/auth.json", ".ssh/id_ed25519", ".netrc", ".claude/history.jsonl", ".codex/history.jsonl"} {
			if b.Has(login) {
				t.Errorf("%s of kind %s has the login or history %s", b.Path, b.Kind, login)
			}
		}
		hostile(t, b)
	}
}

// settingsToLeave is a file of settings with everything that must not come along: what runs, variables,
// logins. Each of its values says so.
const settingsToLeave = `{"hooks":{"PreToolUse":[{"hooks":[{"type":"command","command":"RUNS"}]}]},"statusLine":{"type":"command","command":"RUNS"},"apiKeyHelper":"RUNS","awsAuthRefresh":"RUNS",
"fileSuggestion":{"command":"RUNS"},"env":{"X":"VALUE"},"enabledPlugins":{"RUNS":true},"plugin":["RUNS"],"formatter":{"x":{"command":["RUNS"]}},"lsp":{"x":{"command":["RUNS"]}},
"tools":{"discoveryCommand":"RUNS","callCommand":"RUNS"},"security":{"auth":{"selectedType":"LOGIN"}},"provider":{"x":{"options":{"apiKey":"LOGIN","baseURL":"LOGIN"}}},"oauthAccount":{"emailAddress":"LOGIN"},
"primaryApiKey":"LOGIN","telemetry":{"otlpEndpoint":"VALUE"},"permissions":{"defaultMode":"RUNS","additionalDirectories":["VALUE"]},"general":{"preferredEditor":"RUNS"},"hooksConfig":{"x":"RUNS"},
"projects":{"/src":{"mcpServers":{"x":{"command":"RUNS"}},"history":["VALUE"]}},
"mcpServers":{"open":{"command":"server","args":["--port","1"],"env":{"K":"VALUE"},"headers":{"K":"VALUE"},"oauth":{"clientSecret":"LOGIN"},"cwd":"VALUE","trust":true},
"shut":{"command":"other","args":["--api-key","LOGIN"]},"far":{"url":"https://u:LOGIN@example.com/"},"query":{"url":"https://example.com/?k=LOGIN"},"two":{"url":"https://example.com/","httpUrl":"https://example.com/?k=LOGIN"},"none":7,"empty":{}},
"mcp":{"open":{"type":"local","command":["server"],"environment":{"K":"VALUE"},"headers":{"K":"VALUE"}},"shut":{"type":"remote","url":"https://example.com/?k=LOGIN"}}}`

const configToLeave = "notify = [\"RUNS\"]\nmodel_provider = \"LOGIN\"\nmodel_instructions_file = \"VALUE\"\nx = \"\"\"\nmodel = \"VALUE\"\n\"\"\"\n[model_providers.x]\nexperimental_bearer_token = \"LOGIN\"\n" +
	"[shell_environment_policy.set]\nX = \"VALUE\"\n[otel]\nexporter = \"VALUE\"\n[mcp_servers.open]\ncommand = \"server\"\nargs = [\n \"--port\", # [\n \"1\",\n]\nenv = { K = \"VALUE\" }\nhttp_headers = { K = \"VALUE\" }\n" +
	"bearer_token_env_var = \"VALUE\"\n[mcp_servers.open.env]\nK = \"VALUE\"\n[mcp_servers.shut]\ncommand = \"x\"\nargs = [\"--token\", \"LOGIN\"]\n[mcp_servers.far]\nurl = \"https://u:LOGIN@example.com\"\n[projects.\"/src\"]\ntrust_level = \"VALUE\"\n"

// hostile brings a home in which everything is that must stay.
func hostile(t *testing.T, b agent.Bring) {
	// Drawn at random, and encoded, so that no tool that looks for tokens finds it.
	drawn, err := base64.StdEncoding.DecodeString("Z2hwX200eURERU1ZcGZPMWdpTlFZRWJ5cG9UQ0lhakg3ZzM0bUVpTw==")
	if err != nil {
		t.Fatal(err)
	}
	token := string(drawn)
	p := b.Path
	if strings.HasSuffix(p, "/") {
		p += "a/SKILL.md"
	}
	if b.Take != nil {
		comes := false
		for _, file := range []string{settingsToLeave, configToLeave} {
			part, left := b.Part(p, []byte(file))
			if s := string(part); strings.Contains(s, "RUNS") || strings.Contains(s, "VALUE") || strings.Contains(s, "LOGIN") {
				t.Errorf("of %s, kind %s, comes along: %s", b.Path, b.Kind, s)
			}
			comes = comes || bytes.Contains(part, []byte("server"))
			if len(left) == 0 && len(part) > 0 {
				t.Errorf("what of %s, kind %s, stays is not named", b.Path, b.Kind)
			}
			if again, _ := b.Part(p, part); !bytes.Equal(again, part) {
				t.Errorf("of what comes along of %s, kind %s, not all does again:\n%s\n%s", b.Path, b.Kind, part, again)
			}
			if len(part) > 0 && b.Into != nil {
				into(t, b, part)
			}
		}
		if b.Kind == agent.Servers && !comes {
			t.Errorf("no server of %s comes along", b.Path)
		}
	} else if part, _ := b.Part(p, []byte("Be brief.")); len(part) == 0 {
		t.Errorf("%s does not come along", b.Path)
	} else if b.Into != nil {
		into(t, b, part)
	}
	for _, file := range []string{
		"Use " + token + " for it.\n",
		`{"model":"` + token + `","ui":{"theme":"` + token + `"},"mcpServers":{"a":{"command":"` + token + `"}},"mcp":{"a":{"command":["` + token + `"]}}}`,
		"model = \"" + token + "\"\n[mcp_servers.a]\ncommand = \"" + token + "\"\n",
	} {
		part, left := b.Part(p, []byte(file))
		if bytes.Contains(part, []byte(token)) || len(left) == 0 && b.Take == nil {
			t.Errorf("a token in %s, kind %s, comes along: %q, %v", b.Path, b.Kind, part, left)
		}
	}
	if part, left := b.Part(strings.TrimSuffix(b.Path, "/")+"/.env", []byte("A=b")); len(part) > 0 || len(left) == 0 {
		t.Errorf("an environment file below %s comes along", b.Path)
	}
	for _, rubbish := range []string{"", "null", "[]", "{", "\xff\x00", "[", "a = [", `a = """`, strings.Repeat(`{"a":`, 20_000), strings.Repeat("[", 1<<20), `a = """` + strings.Repeat("\n", 1<<20)} {
		if part, _ := b.Part(p, []byte(rubbish)); b.Into != nil {
			b.Into([]byte(rubbish), nil, part) // does not panic
		}
	}
}

// into tries how a part comes into a file of the cell.
func into(t *testing.T, b agent.Bring, part []byte) {
	first := b.Into(nil, nil, part)
	if !bytes.Equal(first, part) {
		t.Errorf("%s, kind %s, is not what came along: %q, not %q", b.Path, b.Kind, first, part)
	}
	if again := b.Into(first, part, part); !bytes.Equal(again, first) {
		t.Errorf("%s, kind %s, changes without a cause: %q, %q", b.Path, b.Kind, first, again)
	}
}
