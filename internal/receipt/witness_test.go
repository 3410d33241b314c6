package receipt

import (
	"crypto/rand"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"
)

// A head that witnesses signed, too, is that of its ledger still; without the ledger's own signature it is not.
func TestHeadWithWitnesses(t *testing.T) {
	k := newKey(t)
	l := openLedger(t, sample(t, k, 3), k)
	head := l.Head()
	skey, _, err := note.GenerateKey(rand.Reader, "witness.example/w1")
	must(t, err)
	witness, err := note.NewSigner(skey)
	must(t, err)
	n, err := note.Open(head.Note, note.VerifierList(mustVerifier(t, k.Public())))
	must(t, err)
	signed, err := note.Sign(n, witness)
	must(t, err)
	if lines := strings.Count(string(signed), "\u2014 "); lines != 2 {
		t.Fatalf("the note has %d signatures:\n%s", lines, signed)
	}
	got, err := ParseHead(signed, keysOf(k.Public()))
	if err != nil || got.Size != head.Size || got.Root != head.Root {
		t.Errorf("a head with a witness: %+v, %v", got, err)
	}
	b, err := l.Export(1, 2, nil)
	must(t, err)
	b.Head = string(signed)
	if r := Verify(b, k.Public(), &head); !r.OK() {
		t.Errorf("an export with such a head: %+v", r.Problems)
	}
	text, signatures, _ := strings.Cut(string(signed), "\n\n")
	for line := range strings.Lines(signatures) {
		if strings.Contains(line, "witness") {
			if _, err := ParseHead([]byte(text+"\n\n"+line), keysOf(k.Public())); err == nil {
				t.Error("a head that the witness alone signed is taken")
			}
		}
	}
}

func mustVerifier(t *testing.T, key PublicKey) note.Verifier {
	t.Helper()
	v, err := noteVerifier(key.Origin(), key)
	must(t, err)
	return v
}
