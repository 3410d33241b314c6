package finding

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

// seen is a run that turns one set of files into another.
type seen struct {
	before, after map[string]string // contents; "->TARGET" is a symlink, "+x TEXT" an executable file
	run           api.Run
	held          []api.Held
	stdout        string
	calls         []api.ToolCall
	gap           string // why there may be more calls
	policy        policy.Findings
	unread        string
}

func (s seen) evidence() *Evidence {
	mode := func(c string) string {
		switch {
		case strings.HasPrefix(c, "->"):
			return "120000"
		case strings.HasPrefix(c, "+x "):
			return "100755"
		}
		return "100644"
	}
	e := &Evidence{Run: &s.run, Held: s.held, Stdout: s.stdout, Policy: s.policy, Unread: s.unread}
	if s.calls != nil || s.gap != "" {
		e.Calls = &api.ToolCalls{Calls: s.calls, Read: []api.Transcript{{Path: "~/t.jsonl", Problem: s.gap}}}
	}
	read := func(files map[string]string) func(string, int64) ([]byte, error) {
		return func(path string, most int64) ([]byte, error) {
			c, is := files[path]
			c = strings.TrimPrefix(c, "+x ")
			switch {
			case !is || strings.HasPrefix(c, "->"):
				return nil, cell.Errorf(cell.NotFound, "test", "", "no file %s", path)
			case int64(len(c)) > most:
				return nil, cell.Errorf(cell.TooLarge, "test", "", "large")
			}
			return []byte(c), nil
		}
	}
	e.Before, e.After = read(s.before), read(s.after)
	e.Size = func(path string) (int64, error) { return int64(len(strings.TrimPrefix(s.after[path], "+x "))), nil }
	e.Link = func(path string) (string, error) { return strings.TrimPrefix(s.after[path], "->"), nil }
	paths := map[string]bool{}
	for p := range s.before {
		paths[p] = true
	}
	for p := range s.after {
		paths[p] = true
	}
	for p := range paths {
		was, had := s.before[p]
		is, has := s.after[p]
		c := api.FileChange{Path: p, Binary: strings.ContainsRune(was+is, 0), OldDigest: was, NewDigest: is}
		switch {
		case had && has && was == is:
			continue
		case !had:
			c.Status, c.NewMode = "added", mode(is)
		case !has:
			c.Status, c.OldMode = "deleted", mode(was)
		default:
			c.Status, c.OldMode, c.NewMode = "modified", mode(was), mode(is)
		}
		e.Changed = append(e.Changed, c)
	}
	slices.SortFunc(e.Changed, func(a, b api.FileChange) int { return strings.Compare(a.Path, b.Path) })
	return e
}

func files(kv ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return m
}

func denial(want string, times int64) *api.Network {
	return &api.Network{Denials: []api.Denial{{Want: want, Times: times}}}
}

func many(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprint("f", i)] = "x"
	}
	return m
}

const goTests = "package a\n\nimport \"testing\"\n\nfunc TestOne(t *testing.T) {\n\tif true {\n\t\tt.Fatal()\n\t}\n}\n\nfunc TestTwo(t *testing.T) { t.Error() }\n"

// Each rule is found in the first, and not in the others.
var cases = map[string][]seen{
	"held-back": {{held: []api.Held{{Path: ".git/config", Why: "git"}}}, {}, {held: []api.Held{{Path: ".travis.yml", Why: "CI"}}, after: files(".travis.yml", "x")}},
	"ci-changed": {{after: files(".github/workflows/ci.yml", "on: push")}, {after: files("docs/.github.md", "x")},
		{after: files("vendor/.travis.yml", "x")}},
	"hook-changed":          {{after: files(".husky/pre-commit", "x")}, {after: files("hooks/x", "x")}},
	"agent-config-changed":  {{after: files("CLAUDE.md", "x")}, {after: files("claude.go", "x")}},
	"editor-config-changed": {{after: files(".vscode/tasks.json", "{}")}, {after: files("vscode/tasks.json", "{}")}},
	"build-changed":         {{before: files("Makefile", "a"), after: files("Makefile", "b")}, {before: files("make.go", "a"), after: files("make.go", "b")}},
	"mode-widened":          {{before: files("run", "x"), after: files("run", "+x x")}, {before: files("run", "+x y"), after: files("run", "+x x")}},
	"executable-added":      {{after: files("run", "+x #!/bin/sh")}, {after: files("run", "#!/bin/sh")}},
	"binary-added":          {{after: files("a.bin", "\x00")}, {after: files("a.png", "\x00")}, {after: files("a", "text")}},
	"binary-changed":        {{before: files("a.bin", "\x00"), after: files("a.bin", "\x00\x00")}, {after: files("a.bin", "\x00")}},
	"large-file-added":      {{after: files("a", strings.Repeat("x", largeFile+1))}, {after: files("a", "x")}},
	"minified-added":        {{after: files("a.js", strings.Repeat("x", longLine))}, {after: files("a.txt", strings.Repeat("x", longLine))}, {after: files("a.js", "x\ny\n")}},
	"link-outside":          {{after: files("a/l", "->../../etc")}, {after: files("a/l", "->../b")}, {after: files("l", "->a")}},
	"submodule-changed":     {{after: files(".gitmodules", "x")}, {after: files("gitmodules", "x")}},
	"attributes-changed":    {{after: files("a/.gitattributes", "x")}, {after: files("attributes", "x")}},
	"ignore-changed":        {{before: files(".gitignore", "a\n"), after: files(".gitignore", "a\nb\n")}, {before: files(".gitignore", "a\nb\n"), after: files(".gitignore", "# x\na\n")}},
	"ignored-changed":       {{run: api.Run{Changes: api.Changes{Ignored: 3}}}, {}},
	"licence-changed":       {{before: files("LICENSE", "a"), after: files("LICENSE", "b")}, {after: files("license.go", "b")}},
	"many-deleted":          {{before: many(manyFiles)}, {before: many(manyFiles - 1)}},
	"pinned-changed":        {{run: api.Run{Check: &api.Check{Pins: []string{"t"}, Restored: []string{"t/a"}}}}, {run: api.Run{Check: &api.Check{Pins: []string{"t"}}}}, {}},
	"check-changed":         {{run: api.Run{Check: &api.Check{Changed: []string{"c.sh"}}}}, {run: api.Run{Check: &api.Check{Pins: []string{"c.sh"}, Restored: nil}}}, {}},
	"secret-added": {{after: files("a", "x = ghp_0123456789abcdefghijABCDEFGHIJ012345\n")}, {after: files("a", "x = token\n")}, {after: files("a", "https://user:pass@example.com git+https://me:${TOKEN}@github.com/x postgres://a:b@localhost/d postgres://a@user:ba.d@host/db\n")}, {run: api.Run{LeftOut: []api.LeftOut{{Path: "a"}}}, after: files("a", "x = ghp_0123456789abcdefghijABCDEFGHIJ012345\n")},
		{before: files("a", "ghp_0123456789abcdefghijABCDEFGHIJ012345\n"), after: files("a", "new\nghp_0123456789abcdefghijABCDEFGHIJ012345\n")}},
	"invisible-text":       {{after: files("a.go", "x\u200by\n")}, {after: files("a.go", "tab\there \u00e9\n")}, {after: files("ok", "\ufeffx\n")}},
	"prepare-script":       {{after: files("package.json", `{"scripts": {"prepare": "husky"}}`)}, {after: files("package.json", `{"scripts": {"test": "node x.js"}}`)}},
	"hidden-text":          {{after: files("a.go", "if x /*\u202e*/ {}\n")}, {after: files("a.go", "tab\there \u00e9\n")}, {after: files("ok", "\ufeffx\n")}},
	"test-deleted":         {{before: files("a_test.go", goTests)}, {before: files("a.go", "package a")}, {before: files("a_test.go", "package a\n\nfunc BenchmarkX(b *testing.B) {}\n")}},
	"tests-fewer":          {{before: files("a_test.go", goTests), after: files("a_test.go", strings.Split(goTests, "\n\nfunc TestTwo")[0]+"\n")}, {before: files("a_test.go", goTests), after: files("a_test.go", goTests+"\nfunc TestThree(t *testing.T) {}\n")}, {before: files("a_test.go", goTests), after: files("a_test.go", strings.Split(goTests, "\n\nfunc TestTwo")[0]+"\n", "b_test.go", "package a\n\nfunc TestTwo(t *testing.T) {}\n")}, {before: files("a.test.js", "it('a', () => {})\n"), after: files("a.test.js", "it('a', () => { emit(x) })\n")}},
	"test-skipped":         {{before: files("a_test.go", goTests), after: files("a_test.go", strings.Replace(goTests, "{ t.Error() }", "{\n\tt.Skip()\n}", 1))}, {before: files("a_test.go", goTests), after: files("a_test.go", strings.Replace(goTests, "t.Fatal()", "t.Skip()", 1))}, {before: files("a_test.go", goTests), after: files("a_test.go", strings.Replace(goTests, "t.Fatal()", "t.Fatal(1)", 1))}, {before: files("test_a.py", "def test_a():\n  pass\n"), after: files("test_a.py", "# pytest.skip()\ndef test_a():\n  pass\n")}},
	"assertions-fewer":     {{before: files("a_test.go", goTests), after: files("a_test.go", strings.Replace(goTests, "t.Error()", "", 1))}, {before: files("a_test.go", goTests), after: files("a_test.go", goTests+"// x\n")}},
	"expectations-changed": {{before: files("x/__snapshots__/a.snap", "a"), after: files("x/__snapshots__/a.snap", "b")}, {after: files("snap.go", "x")}},
	"dependency-added": {{before: files("package.json", `{"dependencies": {"a": "1"}}`), after: files("package.json", `{"dependencies": {"a": "2", "b": "1"}}`)},
		{before: files("package.json", `{"dependencies": {"a": "1"}}`), after: files("package.json", `{"dependencies": {"a": "2"}}`)}, {after: files("node_modules/x/package.json", `{"dependencies": {"a": "2"}}`)}},
	"dependency-source": {{before: files("go.mod", "module a\n\nrequire b v1.0.0\n"), after: files("go.mod", "module a\n\nrequire b v1.0.0\n\nreplace b => ../b\n")},
		{after: files("go.mod", "module a\n\nrequire b v1.0.0\n")}, {after: files("package.json", `{"dependencies": {"a": "^2 || 3", "@x/y": "workspace:*", "z": "file:packages/z", "typescript1": "npm:typescript@1"}}`)}},
	"install-script": {{after: files("package.json", `{"scripts": {"postinstall": "node x.js"}}`)}, {after: files("package.json", `{"scripts": {"test": "node x.js"}}`)}},
	"lock-differs": {{before: files("package-lock.json", `{"packages": {"": {"dependencies": {"a": "1"}}}}`), after: files("package-lock.json", `{"packages": {"": {"dependencies": {"a": "1"}}}}`, "package.json", `{"dependencies": {"a": "2"}}`)},
		{after: files("package-lock.json", `{"packages": {"": {"dependencies": {"a": "2"}}}}`, "package.json", `{"dependencies": {"a": "2"}}`)}, {after: files("package.json", `{"dependencies": {"a": "2"}}`)}},
	"registry-changed": {{after: files(".npmrc", "registry=x")}, {after: files("npmrc", "x")}},
	"tunnel":           {{run: api.Run{Network: denial("resolve abc.ngrok.io", 1)}}, {run: api.Run{Network: denial("resolve github.com", 1)}}, {run: api.Run{Network: denial("resolve notngrok.io", 1)}}},
	"denied-repeated":  {{run: api.Run{Network: denial("POST https://x.example/a", oftenDenied)}}, {run: api.Run{Network: denial("POST https://x.example/a", oftenDenied-1)}}},
	"denied":           {{run: api.Run{Network: denial("connect x.example:443", 1)}}, {run: api.Run{Network: &api.Network{}}}},
	"network-tried":    {{run: api.Run{Network: &api.Network{Tried: 2}}}, {run: api.Run{Network: &api.Network{}}}},
	"verdict-imitated": {{run: exited(1), stdout: "ok  \texample.com/a\t0.01s\n"}, {run: exited(0), stdout: "ok  \texample.com/a\t0.01s\n"}, {run: exited(1), stdout: "--- FAIL: TestA\nok  \texample.com/b\t0.01s\nFAIL\n"}, {run: exited(1), stdout: "all is well\n"}},
	"reported-check-differs": {
		{run: checked(1), calls: calls(shell("cd /src && make test", 0), edits("a"))}, {run: checked(0), calls: calls(shell("make test", 0))}, {run: checked(1), calls: calls(shell("make test", 1))},
		{run: checked(1), calls: calls(shell("make test", 0), shell("make test", 2))}, {run: checked(1), calls: calls(shell("make testing", 0))}, {run: checked(1)}, {run: checked(1), calls: calls(api.ToolCall{Kind: "shell", What: "make test"})}},
	"reported-edit-missing": {{before: files("a", "x"), after: files("a", "x"), calls: calls(edits("a"))}, {before: files("a", "x"), after: files("a", "y"), calls: calls(edits("a"))},
		{before: files("a", "x"), calls: calls(edits("a"))}, {calls: calls(edits("/home/u/a"))}, {calls: calls(api.ToolCall{Kind: "edit", Files: []string{"a"}, Ended: true, Failed: true})}, {calls: calls(shell("touch a", 0))},
		{before: files("a", strings.Repeat("x", maxRead+1)), after: files("a", strings.Repeat("x", maxRead+1)), calls: calls(edits("a"))}},
	"unreported-change": {{after: files("a", "x", "b", "y"), calls: calls(edits("a"))}, {after: files("a", "x"), calls: calls(edits("a"))}, {after: files("a", "x", "b", "y"), calls: calls(edits("a"), shell("make", 0))},
		{after: files("a", "x", "b", "y"), calls: calls(edits("a")), gap: "cut"}, {after: files("b", "y"), calls: calls(api.ToolCall{Kind: "read", Ended: true})}, {after: files("a", "x", "b", "y"), calls: calls(edits("a"), api.ToolCall{Tool: "mcp"})}, {after: files("b", "y")}},
	"reported-gap":      {{run: modelled(2), gap: "cut"}, {run: modelled(1, 1), calls: calls(edits("a"))}, {run: modelled(2), calls: calls(edits("a"))}, {gap: "cut"}, {run: modelled(0), gap: "cut"}, {run: modelled(2)}},
	"output-hides":      {{stdout: "a\x1b[8mhidden\x1b[0m"}, {stdout: "a\x1b[1;31mred\x1b[0m\x1b[2K\r"}, {run: api.Run{TTY: true}, stdout: "\x1b]0;title\a"}},
	"secret-found":      {{run: api.Run{Secrets: &api.Secrets{Found: []api.SecretFound{{Credential: "x", In: "stdout"}}}}}, {run: api.Run{Secrets: &api.Secrets{}}}},
	"not-isolated":      {{run: api.Run{Isolation: "not isolated"}}, {run: api.Run{Isolation: "isolated"}}},
	"weaker":            {{run: api.Run{DowngradeWords: []string{"network-open"}}}, {run: api.Run{DowngradeWords: []string{"root-writable"}}}},
	"limit-reached":     {{run: api.Run{Cause: "memory limit"}}, {run: api.Run{Cause: "interrupted"}}},
	"process-left":      {{run: api.Run{Usage: api.Usage{LeftOver: 2}}}, {}},
	"output-incomplete": {{run: api.Run{Output: api.Outputs{Stdout: api.Output1{Bytes: 2, Kept: 1}}}}, {run: api.Run{Output: api.Outputs{Stdout: api.Output1{Bytes: 2, Kept: 2}}}}},
	"clock-set": {{after: files("Makefile", "test:\n\tTZ=UTC go test ./...\n")}, {after: files("Makefile", "test:\n\techo $TZ\n# TZ=UTC\nQTZ=1\n")}, {after: files("a.go", "TZ=UTC")},
		{before: files("Makefile", "a:\n\tTZ=UTC x\n"), after: files("Makefile", "a:\n\tTZ=UTC x\nb:\n")}},
	"policy-unread": {{unread: "cannot read the policy"}, {}},
	"source-moved":  {{run: api.Run{Conflicts: []string{"a"}}}, {}},
	"unchecked":     {{run: api.Run{Changes: api.Changes{Files: 1}}}, {run: api.Run{Changes: api.Changes{Files: 1}, Check: &api.Check{}}}},
}

func exited(code int) api.Run { return api.Run{ExitCode: &code} }

func calls(list ...api.ToolCall) []api.ToolCall { return list }

func shell(command string, exit int) api.ToolCall {
	return api.ToolCall{Tool: "Bash", Kind: shellCall, What: command, ExitCode: &exit, Ended: true, Failed: exit != 0}
}

func edits(files ...string) api.ToolCall {
	return api.ToolCall{Tool: "Edit", Kind: editCall, Files: files, Ended: true}
}

func checked(exit int) api.Run {
	return api.Run{Check: &api.Check{Command: "make test", ExitCode: exit}}
}

// modelled is a run that asked a model, and how many calls its answers had.
func modelled(requests int64, calls ...int64) api.Run {
	m := api.ModelUse{Model: "m", Requests: requests}
	for _, n := range calls {
		m.Calls += n
	}
	return api.Run{Network: &api.Network{Models: []api.ModelUse{m}}}
}

// An account with fewer calls than the answers of models have is a gap, too.
func TestGapOfCalls(t *testing.T) {
	s := seen{run: modelled(3, 2), calls: calls(edits("a"))}
	if !slices.ContainsFunc(Find(s.evidence()), func(f api.RunFinding) bool {
		return f.Rule == "reported-gap" && strings.Contains(f.What, "saw 2 calls") && strings.Contains(f.What, "1 reported")
	}) {
		t.Errorf("found are %+v", Find(s.evidence()))
	}
}

func TestRules(t *testing.T) {
	for _, r := range Rules() {
		t.Run(r.ID, func(t *testing.T) {
			if r.Title == "" || r.Why == "" || r.See == "" || api.SeverityWeight(r.Severity) == 0 {
				t.Errorf("not all is said of it: %+v", r)
			}
			list := cases[r.ID]
			if len(list) < 2 {
				t.Fatal("there is no case with it and one without")
			}
			for i, s := range list {
				is := slices.ContainsFunc(Find(s.evidence()), func(f api.RunFinding) bool { return f.Rule == r.ID })
				if is != (i == 0) {
					t.Errorf("case %d: found is %v: %+v", i, is, Find(s.evidence()))
				}
			}
		})
	}
	if len(cases) != len(Rules()) {
		t.Errorf("%d rules, and %d have cases", len(Rules()), len(cases))
	}
}

// What the files of dependencies say, by their own forms.
func TestManifests(t *testing.T) {
	for name, c := range map[string]struct {
		path, text             string
		wants, fetched, script string
	}{
		"npm lock":     {"package-lock.json", `{"packages": {"": {}, "node_modules/a": {"version": "1.0.0", "resolved": "https://registry.npmjs.org/a/-/a.tgz"}, "node_modules/b": {"version": "2.0.0", "resolved": "https://evil.example/b.tgz", "hasInstallScript": true}}}`, "a b", "b", "b@2.0.0"},
		"npm":          {"package.json", `{"dependencies": {"a": "git+https://x/y", "b": "user/repo", "c": "~1.2", "d": "npm:e@1", "f": "file:../../f"}}`, "a b c d f", "a b d f", ""},
		"cargo":        {"Cargo.toml", "[dependencies]\na = \"1\"\nb = { git = \"https://x\" }\n[target.'cfg(unix)'.dependencies]\nc = { version = \"1\", path = \"../c\" }\n[patch.crates-io]\nd = { path = \"/d\" }\n", "a b c d", "b c d", ""},
		"cargo lock":   {"Cargo.lock", "[[package]]\nname = \"a\"\nversion = \"1\"\nsource = \"registry+https://github.com/rust-lang/crates.io-index\"\n[[package]]\nname = \"b\"\nversion = \"1\"\nsource = \"git+https://x\"\n", "a b", "b", ""},
		"pyproject":    {"pyproject.toml", "[project]\ndependencies = [\"A>=1; python_version>'3'\", \"b @ https://x/b.whl\"]\n[tool.poetry.dependencies]\nc = {git = \"https://x\"}\n[tool.uv.sources]\nd = {path = \"../d\"}\n", "a b c d", "b c d", ""},
		"requirements": {"requirements-dev.txt", "# x\na==1\n-e git+https://x/y#egg=z\n--extra-index-url https://pypi.evil\n-r other.txt\n", "-e git+https://x/y#egg=z a", "--extra-index-url https://pypi.evil -e git+https://x/y#egg=z", ""},
		"yarn":         {"yarn.lock", "# yarn lockfile v1\n\na@^1:\n  version \"1\"\n  resolved \"https://registry.yarnpkg.com/a/-/a.tgz#x\"\n\n\"@b/c@1\":\n  resolved \"https://codeload.github.com/b/c/tar.gz/x\"\n", "@b/c a", "@b/c", ""},
		"pnpm":         {"pnpm-lock.yaml", "packages:\n\n  a@1.0.0:\n    resolution: {integrity: x}\n\n  '@b/c@2.0.0':\n    resolution: {tarball: https://codeload.github.com/b/c}\n", "@b/c a", "@b/c", ""},
		"go":           {"go.mod", "module m\n\nrequire (\n\ta v1.0.0\n)\nreplace a => b v2.0.0\n", "a", "a", ""},
	} {
		m := readerOf(c.path)([]byte(c.text))
		if m.unparsed {
			t.Errorf("%s: not read", name)
		}
		for what, x := range map[string][2]string{"wanted": {keys(m.wants), c.wants}, "fetched": {keys(m.fetched), c.fetched}, "scripts": {keys(m.scripts), c.script}} {
			if x[0] != x[1] {
				t.Errorf("%s: %s is %q, not %q", name, what, x[0], x[1])
			}
		}
	}
}

func keys(m map[string]string) string { return strings.Join(newOnes(nil, m, true), " ") }

// Nothing that a file may have makes a rule fail.
func FuzzFind(f *testing.F) {
	for name := range readers {
		f.Add(name, []byte("{"), []byte("[[package]]"))
	}
	f.Add("a_test.go", []byte(goTests), []byte("package"))
	f.Add("requirements.txt", []byte(""), []byte("-e \n @"))
	f.Fuzz(func(t *testing.T, path string, before, after []byte) {
		s := seen{before: files(path, string(before)), after: files(path, string(after)), stdout: string(after), run: api.Run{Network: denial(string(before), 1)}}
		for _, found := range Find(s.evidence()) {
			if api.SeverityWeight(found.Severity) == 0 || found.Rule == "" {
				t.Errorf("%+v", found)
			}
		}
	})
}

// Rules are of files or of what happened in a run: both together find what Find does, and neither finds what is the other's.
func TestRulesOfFilesAndOfRuns(t *testing.T) {
	t.Parallel()
	e := &Evidence{Run: &api.Run{ID: "r-1", Isolation: "not isolated", Backend: "none", Changes: api.Changes{Files: 1}}, Changed: []api.FileChange{{Path: ".github/workflows/ci.yml", Status: "deleted"}},
		Policy: policy.Findings{Rules: []policy.OwnRule{{ID: "f", Severity: "low", Explain: "x", When: policy.WhenPaths, Match: []string{"**"}}, {ID: "r", Severity: "low", Explain: "x", When: policy.WhenRun, If: []string{"backend = none"}}}}}
	ids := func(list []api.RunFinding) (ids []string) {
		for _, f := range list {
			ids = append(ids, f.Rule)
		}
		slices.Sort(ids)
		return ids
	}
	files, run := ids(FindInFiles(e)), ids(FindInRun(e))
	if want := []string{"ci-changed", "own/f"}; !slices.Equal(files, want) {
		t.Errorf("of files: %q, not %q", files, want)
	}
	if want := []string{"not-isolated", "own/r", "unchecked"}; !slices.Equal(run, want) {
		t.Errorf("of the run: %q, not %q", run, want)
	}
	all := append(files, run...)
	slices.Sort(all)
	if got := ids(Find(e)); !slices.Equal(got, all) {
		t.Errorf("both: %q, and Find %q", all, got)
	}
}
