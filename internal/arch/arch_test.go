package arch

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/pando-dev/pando/"

// rows is the order of packages, top first. A package may import packages of
// lower rows only. See docs/design/0001-house.md for the rows that the first plan
// did not have (5a, 5b, 5c, 6b, 6c, and home beside the words).
var rows = [][]string{
	{"cmd/pando", "cmd/pandod", "cmd/pando-bench", "cmd/pando-guest", "tools/seccompdoc", "tools/benchchart", "tools/compare", "tools/openapi", "tools/tests", "tools/house", "tools/words", "tools/upgrades"},
	{"internal/cli", "internal/daemon", "internal/e2b", "internal/mcp", "bench"},
	{"client", "internal/sshd"},
	{"internal/engine", "internal/doctor"},
	{"internal/cache", "internal/live", "internal/govern", "internal/evidence", "internal/gc", "internal/result", "internal/run", "internal/service", "internal/spawn"}, // managers: none imports another
	{"internal/backend/gvisor", "internal/backend/microvm", "internal/backend/namespace", "internal/backend/none", "internal/backend/mem", "internal/backend/backendtest", "internal/vmm/vmmtest", "internal/workspace/overlay", "internal/workspace/clone", "internal/workspace/workspacetest", "internal/store/disk", "internal/store/mem", "internal/store/storetest", "internal/gateway/gatewaytest"},
	{"internal/isolation/guestkernel"},
	{"internal/isolation"},
	{"internal/finding", "internal/race", "internal/report", "internal/push", "internal/signer", "internal/keeper/client", "internal/keeper/server", "internal/workspace/apply", "internal/workspace/merge", "internal/guest/machine", "internal/state", "internal/step"},
	{"internal/workspace/diff", "internal/dockerfile", "internal/ceiling", "internal/notice", "internal/operation", "internal/policy/decide"},
	{"internal/agent/catalog"},
	{"internal/agent/claude", "internal/agent/codex", "internal/agent/copilot", "internal/agent/gemini", "internal/agent/opencode", "internal/agent/agenttest"},
	{"internal/agent", "internal/backend", "internal/keeper/proto", "internal/memory", "internal/guest", "internal/store", "internal/workspace", "internal/image", "internal/policy", "internal/gateway", "internal/receipt", "internal/credential", "internal/credential/sshagent", "internal/access", "internal/ocsf", "internal/oci", "internal/telemetry", "internal/vmm/qemu", "internal/vmm/boot", "internal/upload", "internal/commits"},
	{"internal/secret", "internal/wire"},
	{"internal/gitdir"},
	{"internal/parse", "internal/sftpd"},
	{"internal/reexec", "internal/sibling", "internal/repl", "internal/confine", "internal/hazard", "internal/libcrypto", "internal/archive", "internal/linux/kvm", "internal/vmm", "internal/vmm/ram", "internal/fuseproxy", "internal/terminal/screen", "internal/agent/turn", "internal/agent/price"},
	{"internal/durable", "internal/durable/durabletest", "internal/linux", "internal/volume", "internal/bound", "internal/glob", "internal/terminal"},
	{"api", "internal/cell", "internal/cleanup", "internal/failpoint", "internal/paths"},
}

// free are packages that tests alone import, or that import nothing of ours.
var free = []string{"internal/arch", "internal/testenv", "internal/bound/boundtest", "internal/access/accesstest", "internal/secret/secrettest", "e2e"}

// oneRow lists imports inside a row that are the point of the package.
var oneRow = map[string][]string{
	"internal/durable/durabletest": {"internal/durable"},
	"internal/cleanup":             {"internal/cell"},
	"internal/cell":                nil,
	"internal/backend/backendtest": {"internal/testenv"},
	"internal/agent/agenttest":     {"internal/bound/boundtest"},
	"internal/vmm/vmmtest":         {"internal/testenv"},
	"internal/gateway/gatewaytest": {"internal/testenv"},
}

type pkg struct {
	ImportPath   string
	Dir          string
	Doc          string
	GoFiles      []string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json", "./...")
	cmd.Dir = "../.."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p pkg
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		p.ImportPath = strings.TrimPrefix(p.ImportPath, module)
		all = append(all, p)
	}
	return all
}

func rowOf(path string) int {
	for i, r := range rows {
		if slices.Contains(r, path) {
			return i
		}
	}
	return -1
}

func TestImportsPointDown(t *testing.T) {
	for _, p := range list(t) {
		if slices.Contains(free, p.ImportPath) {
			continue
		}
		row := rowOf(p.ImportPath)
		if row < 0 {
			t.Errorf("%s has no row: give it one here and in docs/design/0001-house.md", p.ImportPath)
			continue
		}
		for _, imp := range p.Imports {
			name, ours := strings.CutPrefix(imp, module)
			if !ours {
				continue
			}
			to := rowOf(name)
			if to <= row && !slices.Contains(oneRow[p.ImportPath], name) {
				t.Errorf("%s imports %s, which is not below it", p.ImportPath, name)
			}
		}
	}
}

// No backend imports another, in its tests either: what two share is internal/isolation.
func TestNoBackendImportsAnother(t *testing.T) {
	const contract, suite = "internal/backend", "internal/backend/backendtest"
	backends := 0
	for _, p := range list(t) {
		if !strings.HasPrefix(p.ImportPath, contract+"/") || p.ImportPath == suite {
			continue
		}
		backends++
		for _, imp := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			name, ours := strings.CutPrefix(imp, module)
			if ours && strings.HasPrefix(name, contract+"/") && name != suite && name != p.ImportPath {
				t.Errorf("%s imports %s", p.ImportPath, name)
			}
		}
	}
	if backends < 5 {
		t.Errorf("%d backends found, 5 are known", backends)
	}
}

func TestApiImportsNothingOfOurs(t *testing.T) {
	for _, p := range list(t) {
		if p.ImportPath != "api" && p.ImportPath != "internal/cell" {
			continue
		}
		for _, imp := range p.Imports {
			if strings.HasPrefix(imp, module) {
				t.Errorf("%s imports %s", p.ImportPath, imp)
			}
		}
	}
}

func TestHabits(t *testing.T) {
	banned := []string{"util", "utils", "common", "misc", "helper", "helpers", "shared"}
	for _, p := range list(t) {
		if p.Doc == "" && len(p.GoFiles) > 0 {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
		if slices.Contains(banned, filepath.Base(p.ImportPath)) {
			t.Errorf("%s is no name for a package", p.ImportPath)
		}
		if strings.Count(p.ImportPath, "/") > 2 {
			t.Errorf("%s lies more than three folders deep", p.ImportPath)
		}
		for _, name := range p.GoFiles {
			checkFile(t, p, filepath.Join(p.Dir, name))
		}
	}
}

func checkFile(t *testing.T, p pkg, path string) {
	t.Helper()
	src, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rel := p.ImportPath + "/" + filepath.Base(path)
	if n := bytes.Count(src, []byte("\n")); n > 800 {
		t.Errorf("%s has %d lines: it has found its second noun", rel, n)
	}
	f, err := parser.ParseFile(token.NewFileSet(), path, src, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, imp := range f.Imports {
		switch imp.Path.Value {
		case `"unsafe"`:
			if !strings.HasSuffix(path, "_unsafe.go") {
				t.Errorf("%s imports unsafe: that stays in files named *_unsafe.go", rel)
			}
		case `"os/exec"`:
			if !slices.Contains(mayExec, rel) {
				t.Errorf("%s executes programs: say here why it may", rel)
			}
		}
	}
	for _, dir := range []string{"Home.State", "Home.Cache", "Home.Run"} {
		if bytes.Contains(src, []byte(dir+`, "`)) || bytes.Contains(src, []byte(dir+`), "`)) {
			t.Errorf("%s names a file of %s: that is a method of paths.Home, which is compared with docs/format.md", rel, dir)
		}
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			t.Errorf("%s has an init function", rel)
		}
	}
}

// The command line is thin: it starts in moments, and is what a client on another host needs.
// What the daemon is made of is not linked into it.
func TestCommandLineIsThin(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./cmd/pando")
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "GOOS=linux", "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, heavy := range []string{
		"go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/exporters", "gvisor.dev/gvisor", "github.com/prometheus", "github.com/modelcontextprotocol", "github.com/charmbracelet",
		module + "internal/engine", module + "internal/daemon", module + "internal/e2b", module + "internal/mcp", module + "internal/backend", module + "internal/keeper",
		module + "internal/gateway", module + "internal/vmm", module + "internal/oci", module + "internal/workspace", module + "internal/telemetry", module + "bench",
	} {
		for dep := range strings.FieldsSeq(string(out)) {
			if dep == heavy || strings.HasPrefix(dep, heavy+"/") {
				t.Errorf("cmd/pando is linked with %s", dep)
			}
		}
	}
}

// The fakes are for tests: no program that is built has them, nor what they need.
func TestFakesAreForTestsAlone(t *testing.T) {
	for _, p := range list(t) {
		for _, imp := range p.Imports {
			if strings.HasSuffix(imp, "/internal/backend/mem") || strings.HasPrefix(imp, "mvdan.cc/sh/") && p.ImportPath != "internal/backend/mem" {
				t.Errorf("%s imports %s, which is for tests", p.ImportPath, imp)
			}
		}
	}
}

// mayExec are the files that may execute host programs. Nothing here runs
// host git in a repository, and nothing runs a program that a repository names (FAILURES H61).
var mayExec = []string{
	"internal/workspace/workspacetest/inside.go", // itself, as the process that has a workspace mounted
	"internal/sibling/sibling.go",                // pandod, which lies beside this executable
	"internal/reexec/reexec.go",                  // this same executable, in another role
	"internal/keeper/client/host.go",             // keepers: the type of a started process
	"internal/backend/none/driver.go",            // the backend that has no isolation, on explicit request
	"internal/backend/backendtest/process.go",    // a later process with a process's number
	"internal/volume/volume.go",                  // mke2fs, on a file of our own that is empty
	"internal/notice/notice.go",                  // notify-send, and commands that the user gave for notices
	"internal/signer/signer.go",                  // the program that the user or operator named as signer
	"internal/notice/group_unix.go",              // nothing: what belongs to these
	"internal/notice/group_other.go",             // the same
	"internal/cli/pager.go",                      // the user's pager
	"internal/cli/agent.go",                      // nothing: it looks for an agent on PATH
	"internal/cli/ssh.go",                        // the user's editor
	"internal/cli/hunks.go",                      // the user's editor
	"internal/commits/commits.go",                // git on a repository of ours, with no configuration of a cell's
	"internal/gitdir/program.go",                 // nothing: it looks for git
	"internal/workspace/merge/text.go",           // git merge-file, on copies outside of any repository
	"internal/cli/dockerlogin.go",                // the credential helper of the user's docker configuration
	"internal/vmm/qemu/probe.go",                 // the machine monitor, to ask for its version and what it reads
	"internal/vmm/vmmtest/vmmtest.go",            // go build, of the suite's own guest
	"internal/vmm/vmmtest/box.go",                // machine monitors, which a keeper starts elsewhere
	"internal/vmm/vmmtest/pause.go",              // mkfs.xfs and mount, for a benchmark
	"internal/workspace/workspacetest/git.go",    // git, on repositories of tests
	"bench/peers.go",                             // the peers that are measured
	"bench/qemu.go",                              // QEMU without pando, as a peer
	"bench/doors.go",                             // pando serve and pando mcp, as programs start them
	"internal/testenv/testenv.go",                // only looks for them
	"tools/compare/main.go",                      // the two builds that it compares
	"tools/tests/flaky.go",                       // the checkout's git, to name the commit
	"tools/tests/runner.go",                      // go test
	"tools/upgrades/main.go",                     // pando
	"tools/tests/tiers.go",                       // go list
}

func TestDesignPageNamesEveryPackage(t *testing.T) {
	page, err := os.ReadFile("../../docs/design/0001-house.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list(t) {
		if strings.HasPrefix(p.ImportPath, "internal/") && !bytes.Contains(page, []byte("`"+p.ImportPath+"`")) {
			t.Errorf("docs/design/0001-house.md does not say what %s is for", p.ImportPath)
		}
	}
}

// readsText are the files that may decide by the text of an error, or of what is called alike.
var readsText = map[string]string{
	"internal/daemon/unread.go":  "encoding/json has no type for an unknown field",
	"internal/state/index.go":    "the message of a checkpoint",
	"internal/e2b/template.go":   "the message of a checkpoint",
	"internal/e2b/create.go":     "the message of a checkpoint",
	"internal/run/failed.go":     "completes the sentence, and decides nothing",
	"internal/daemon/respond.go": "completes the sentence, and decides nothing",
	"internal/cli/cli.go":        "completes the sentence, and decides nothing",
}

// Programs decide by the kind of an error and by its subject. Its text is for people, and changes.
func TestNothingDecidesByTheTextOfAnError(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range list(t) {
		if !strings.HasPrefix(p.ImportPath, "internal/") && !strings.HasPrefix(p.ImportPath, "cmd/") && p.ImportPath != "client" || strings.HasSuffix(p.ImportPath, "test") {
			continue
		}
		for _, name := range p.GoFiles {
			rel := p.ImportPath + "/" + name
			for _, at := range textDecisions(t, filepath.Join(p.Dir, name), nil) {
				if seen[rel] = true; readsText[rel] == "" {
					t.Errorf("%s:%d decides by the text of an error: give it a kind or a subject (package cell)", rel, at)
				}
			}
		}
	}
	for rel := range readsText {
		if !seen[rel] {
			t.Errorf("%s no longer reads a text: take it off the list", rel)
		}
	}
	const broken = "package x\nfunc f(err error, e E) bool { return strings.Contains(err.Error(), \"x\") ||\n strings.HasPrefix(e.Message, \"x\") || strings.Contains(e.Name, \"x\") }"
	if got := textDecisions(t, "broken.go", broken); !slices.Equal(got, []int{2, 3}) {
		t.Errorf("found in lines %v", got)
	}
}

// textDecisions returns the lines of a file in which a function of package strings looks into the
// text of an error.
func textDecisions(t *testing.T, path string, src any) (lines []int) {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, path, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) < 2 {
			return true
		}
		fn, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Contains", "HasPrefix", "HasSuffix", "Index", "EqualFold", "CutPrefix", "CutSuffix"}, fn.Sel.Name) {
			return true
		}
		if x, ok := fn.X.(*ast.Ident); !ok || x.Name != "strings" {
			return true
		}
		text := call.Args[0]
		if c, ok := text.(*ast.CallExpr); ok && len(c.Args) == 0 {
			text = c.Fun
		}
		if s, ok := text.(*ast.SelectorExpr); ok && (s.Sel.Name == "Error" || s.Sel.Name == "Message") {
			lines = append(lines, set.Position(call.Pos()).Line)
		}
		return true
	})
	return lines
}

// Every proxy to a program in a cell strips what its caller showed to pando.
func TestX03EveryProxyStrips(t *testing.T) {
	proxies := 0
	for _, p := range list(t) {
		for _, name := range p.GoFiles {
			src, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(src, []byte("httputil.ReverseProxy")) || p.ImportPath == "bench" || p.ImportPath == "internal/gateway" { // the latter passes on what cells ask for
				continue
			}
			proxies++
			if !bytes.Contains(src, []byte("access.Strip(")) {
				t.Errorf("%s/%s passes requests on without access.Strip", p.ImportPath, name)
			}
		}
	}
	if proxies < 2 {
		t.Errorf("%d proxies found, at least 2 are known", proxies)
	}
}
