package evidence

import (
	"bytes"
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/testenv"
)

// Receipts have the approver's own signature: an installation that makes one up is found out, here and in a bundle, and so is a
// record that says something else.
func TestSignOffIsTheApprovers(t *testing.T) {
	b := newBed(t)
	alice, err := receipt.OpenKey(durable.Disk(t.TempDir()))
	b.must(err)
	mallory, err := receipt.OpenKey(durable.Disk(t.TempDir()))
	b.must(err)
	pem := b.PublicKey()
	public, err := receipt.ParsePublicKey(pem)
	b.must(err)
	python := testenv.Python(t)
	verifier, err := filepath.Abs("../../docs/verify/verify.py")
	b.must(err)
	keyFile := filepath.Join(t.TempDir(), "key")
	b.must(os.WriteFile(keyFile, pem, 0o600))
	for what, x := range map[string]struct {
		name   string
		signer *receipt.Key
		change func(*receipt.SignOff)
	}{
		"the approver": {"", alice, func(*receipt.SignOff) {}}, "another key": {"the sign-off of alice", mallory, func(*receipt.SignOff) {}},
		"of another cell":         {"the sign-off of alice", alice, func(o *receipt.SignOff) { o.Cell = "c-1" }},
		"of another run":          {"the sign-off of alice", alice, func(o *receipt.SignOff) { o.Runs = []string{"r-1"} }},
		"of another decision":     {"the sign-off of alice", alice, func(o *receipt.SignOff) { o.Decision = "reject" }},
		"of another installation": {"the sign-off of alice", alice, func(o *receipt.SignOff) { o.Ledger = "pando.dev/ledger/1" }},
		"of another time":         {"the sign-off of alice", alice, func(o *receipt.SignOff) { o.At = o.At.Add(time.Second) }},
		"with another message":    {"the sign-off of alice", alice, func(o *receipt.SignOff) { o.Message = "no" }},
	} {
		name, signer := x.name, x.signer
		c := b.cell()
		run := b.runIn(&c)
		b.ended(&run, &c)
		digest := receipt.ChangesDigest("1", "2")
		says := receipt.SignOff{Decision: "approve", Approver: "alice", Ledger: public.Origin(), Cell: run.Cell, Runs: []string{run.ID}, Base: "1", After: "2", At: time.Unix(9, 0).UTC()}
		x.change(&says)
		envelope, err := receipt.SignOffBy(signer, digest, says)
		b.must(err)
		so := state.SignOff{Approver: "alice", Key: "ed25519:" + base64.StdEncoding.EncodeToString(alice.Public().Raw()), Decision: "approve", Digest: digest.String(), Runs: []string{run.ID}, At: time.Unix(9, 0).UTC(), Envelope: string(envelope)}
		run.SignOffs = []state.SignOff{so.Kept()}
		_, err = b.Seal(b.ctx, "sign-off/"+run.ID, state.Act{Act: "approve", Cell: run.Cell, Digest: so.Digest, Backend: run.Backend, SignOff: &so}, &run)
		b.must(err)
		_, problems, _ := b.VerifyRun(&run)
		bundle := b.bundled(b.all(), run.ID)
		rep, _, err := receipt.VerifyArchive(bytes.NewReader(bundle), public, nil)
		b.must(err)
		path := filepath.Join(t.TempDir(), "bundle.tar")
		b.must(os.WriteFile(path, bundle, 0o600))
		out, err := exec.Command(python, verifier, path, "--key", keyFile).CombinedOutput()
		if good := name == ""; good != (err == nil) || !good && !strings.HasPrefix(string(out), "edited receipt") {
			t.Errorf("%s: verify.py says %v:\n%s", what, err, out)
		}
		for by, found := range map[string][]receipt.Problem{"VerifyRun": problems, "VerifyArchive": rep.Problems} {
			if good := name == ""; good != (len(found) == 0) || !good && !strings.Contains(found[0].What, name) {
				t.Errorf("%s: %s: %v", what, by, found)
			}
		}
		run.SignOffs[0].Decision = "reject"
		if _, problems, _ := b.VerifyRun(&run); len(problems) == 0 || !strings.Contains(problems[len(problems)-1].What+problems[0].What, "sign-offs") {
			t.Errorf("a record that says reject: %v", problems)
		}
	}
}
