package evidence

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// Receipts have the approver's own signature: an installation that makes one up is found out, here and in a bundle, and so is a
// record that says something else.
func TestSignOffIsTheApprovers(t *testing.T) {
	b := newBed(t)
	alice, err := receipt.OpenKey(durable.Disk(t.TempDir()))
	b.must(err)
	mallory, err := receipt.OpenKey(durable.Disk(t.TempDir()))
	b.must(err)
	pem, err := b.PublicKey()
	b.must(err)
	public, err := receipt.ParsePublicKey(pem)
	b.must(err)
	for name, signer := range map[string]*receipt.Key{"": alice, "the sign-off of alice": mallory} {
		c := b.cell()
		run := b.runIn(&c)
		b.ended(&run, &c)
		digest := receipt.ChangesDigest("1", "2")
		envelope, err := receipt.SignOffBy(signer, digest, receipt.SignOff{Decision: "approve", Approver: "alice", Cell: run.Cell, Runs: []string{run.ID}, Base: "1", After: "2", At: time.Unix(9, 0).UTC()})
		b.must(err)
		so := state.SignOff{Approver: "alice", Key: "ed25519:" + base64.StdEncoding.EncodeToString(alice.Public().Raw()), Decision: "approve", Digest: digest.String(), Runs: []string{run.ID}, At: time.Unix(9, 0).UTC(), Envelope: string(envelope)}
		run.SignOffs = []state.SignOff{so.Kept()}
		_, err = b.Seal(b.ctx, "sign-off/"+run.ID, state.Act{Act: "approve", Cell: run.Cell, Digest: so.Digest, Backend: run.Backend, SignOff: &so}, &run)
		b.must(err)
		_, problems := b.VerifyRun(&run)
		rep, _, err := receipt.VerifyArchive(bytes.NewReader(b.bundled(b.all(), run.ID)), public, nil)
		b.must(err)
		for what, found := range map[string][]receipt.Problem{"VerifyRun": problems, "VerifyArchive": rep.Problems} {
			if good := name == ""; good != (len(found) == 0) || !good && !strings.Contains(found[0].What, name) {
				t.Errorf("%s, signed by the key of alice: %v: %v", what, good, found)
			}
		}
		run.SignOffs[0].Decision = "reject"
		if _, problems := b.VerifyRun(&run); len(problems) == 0 || !strings.Contains(problems[len(problems)-1].What+problems[0].What, "sign-offs") {
			t.Errorf("a record that says reject: %v", problems)
		}
	}
}
