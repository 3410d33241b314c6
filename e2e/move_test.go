package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/testenv"
)

// runbook is the operators' runbook, which TestBackupAndRestore follows.
const runbook = "../docs/howto/operate.md"

// lineOf is the line of the runbook that begins with these words.
func lineOf(t *testing.T, words string) string {
	t.Helper()
	b, err := os.ReadFile(runbook)
	must(t, err)
	for l := range strings.Lines(string(b)) {
		if strings.HasPrefix(l, words) {
			l, _, _ = strings.Cut(l, "#")
			return strings.TrimSpace(l)
		}
	}
	t.Fatalf("%s has no line that begins with %q", runbook, words)
	return ""
}

// TestBackupAndRestore backs an installation up as the runbook says, restores it on
// another host, and finds there: receipts that verify, tokens and credentials that
// can be used, and the same signer.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	rootHasRunIt(t)
	h := newHost(t)
	h.write("file", "1\n")
	h.pando("run", "--cell", "web", "--", "true")
	h.pando("fork", "web", "--name", "twin")
	token := decoded[api.Token](h, "token", "create", "ci", "--scope", "run")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("sk-hunter2-0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.pando("credential", "add", "key", "--from-file", secret, "--for", "https://api.test/**", "--as", "X-Key: {secret}")
	receipts := len(decoded[[]api.Receipt](h, "receipt", "ls"))
	h.pando("receipt", "export", "--all", "-o", "earlier.json")
	h.pando("daemon", "stop")
	// The runbook's state directory is that of a user without PANDO_HOME.
	h.sh(lineOf(t, "umask") + "; " + strings.ReplaceAll(lineOf(t, "tar -C"), "~/.local/share/pando", h.state()))

	if st, err := os.Stat(filepath.Join(h.src, "pando-backup.tar")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the backup is for others to read: %v, %v", st, err)
	}

	other := newHost(t)
	other.sh(strings.ReplaceAll(lineOf(t, "mkdir -p -m 700"), "~/.local/share/pando", other.state()))
	other.sh(strings.NewReplacer("~/.local/share/pando", other.state(), "pando-backup.tar", filepath.Join(h.src, "pando-backup.tar")).Replace(lineOf(t, "tar --same-permissions")))
	if v := other.verify(); !v.OK {
		t.Errorf("%+v", v.Problems)
	}
	if n := len(decoded[[]api.Receipt](other, "receipt", "ls")); n != receipts {
		t.Errorf("%d receipts, there were %d", n, receipts)
	}
	other.pando("receipt", "verify", filepath.Join(h.src, "earlier.json"))
	// What is done here goes on where the ledger ended, by the same key.
	other.write("file", "2\n")
	other.pando("run", "--", "true")
	if v := other.verify(); !v.OK {
		t.Errorf("after a run: %+v", v.Problems)
	}
	other.pando("receipt", "export", "--all", "-o", "later.json")
	other.pando("receipt", "verify", "later.json", "--known", filepath.Join(h.src, "earlier.json"))
	if o := other.try("credential", "check", "key"); o.code != 0 {
		t.Errorf("the credential can't be used: %s%s", o.out, o.stderr)
	}
	l := &load{h: other}
	l.serve("127.0.0.1:0")
	if l.token != "" {
		t.Error("serve made a first token, though there is one")
	}
	if _, err := client.New(client.Config{Host: l.url, Token: token.Secret}).Daemon(t.Context()); err != nil {
		t.Errorf("the token can't be used: %v", err)
	}
	if st, err := os.Stat(other.state("keys")); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the keys are for others to read: %v, %v", st, err)
	}
}

// TestUpgrade puts another pando in the place of one that serves, with a cell at
// work and a client attached: the cell works on, its stream goes on where it was,
// and commands can be run in it.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	rootHasRunIt(t)
	testenv.Python(t)
	h := newHost(t)
	// Another version is the same program under another name of the same length, which
	// is made faster than a build.
	was := decoded[map[string]string](h, "version")["pando"]
	next := strings.Repeat("9", len(was))
	newer := filepath.Join(h.work, "newer")
	must(t, os.Mkdir(newer, 0o755))
	versions := []string{"pando", "pandod"}
	for _, name := range versions {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(built), name))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(newer, name), bytes.ReplaceAll(text, []byte(was), []byte(next)), 0o755))
	}
	bin := filepath.Join(h.work, "bin")
	must(t, os.Mkdir(bin, 0o755))
	place := func(from string) { // as the runbook has it: by mv
		for _, name := range []string{"pando", "pandod", "pando-guest", "pando-runsc"} {
			src := filepath.Join(filepath.Dir(built), name)
			if slices.Contains(versions, name) {
				src = filepath.Join(from, name)
			}
			if _, err := os.Stat(src); err != nil {
				continue
			}
			h.sh("cp -L " + src + " " + bin + "/" + name + ".new; mv " + bin + "/" + name + ".new " + bin + "/" + name)
		}
	}
	place(filepath.Dir(built))
	h.bin = filepath.Join(bin, "pando")
	h.write("file", "1\n")
	l := &load{h: h}
	l.serve("127.0.0.1:0", "--first-token", "admin")
	h.pando("run", "--cell", "web", "--", "true")
	h.pando("template", "build", "tp", "--from", h.src, "--setup", "x = 41")
	h.pando("fork", "tp", "--name", "warm")
	c := l.client()
	const lines = 250
	x, err := c.StartExec(t.Context(), "web", api.ExecRequest{Attach: true, Command: []string{"sh", "-c", "i=0; while [ $i -lt 250 ]; do echo line $i; i=$((i+1)); sleep 0.01; done"}})
	must(t, err)
	var got strings.Builder
	read := func(c *client.Client) {
		a, err := c.AttachExec(t.Context(), x.ID, client.AttachOptions{Stdout: int64(got.Len())})
		if err != nil {
			return
		}
		defer a.Close()
		for {
			f, err := a.Recv(t.Context())
			if err != nil || f.Type == api.FrameExit {
				return
			}
			if f.Type == api.FrameStdout {
				got.Write(f.Payload[8:])
			}
		}
	}
	first := make(chan struct{})
	go func() { defer close(first); read(c) }()
	time.Sleep(time.Second)

	place(newer)
	l.proc.Process.Signal(os.Interrupt)
	l.proc.Wait()
	<-first
	before := got.Len()
	l.serve(strings.TrimPrefix(l.url, "http://"))
	if d, err := l.client().Daemon(t.Context()); err != nil || d.Version != next {
		t.Fatalf("%+v, %v", d, err)
	}
	if before == 0 {
		t.Error("nothing was read before")
	}
	for began := time.Now(); strings.Count(got.String(), "\n") < lines && time.Since(began) < testenv.Patience(); {
		read(l.client())
	}
	want := ""
	for i := range lines {
		want += "line " + strconv.Itoa(i) + "\n"
	}
	if got.String() != want {
		t.Errorf("the stream has %d bytes of %d, or others", got.Len(), len(want))
	}
	if out := h.inCell("web", "cat file"); out != "1\n" {
		t.Errorf("%q", out)
	}
	if out := h.pando("eval", "warm", "x + 1"); !strings.Contains(out, "42") {
		t.Errorf("%q", out)
	}
	h.pando("fork", "tp", "--name", "later", "--eval", "x")
	h.pando("run", "--cell", "web", "--", "sh", "-c", "echo 2 >file")
	if v := h.verify(); !v.OK {
		t.Errorf("%+v", v.Problems)
	}
}
