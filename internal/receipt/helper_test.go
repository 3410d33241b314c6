package receipt

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/durable/durabletest"
)

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func newKey(t testing.TB) *Key {
	t.Helper()
	k, err := OpenKey(durabletest.New())
	must(t, err)
	return k
}

func openLedger(t testing.TB, fsys durable.FS, k Signer) *Ledger {
	t.Helper()
	l, err := OpenLedger(fsys, k)
	must(t, err)
	return l
}

func request(key string, predicate any) Request {
	return Request{
		Key: key, Type: PredicateRun, Predicate: predicate,
		Subjects: []Subject{{"tree", cell.Sum([]byte("tree of " + key))}},
	}
}

// outcome is what the engine might say of a run.
type outcome struct {
	Mode      string `json:"mode"`
	Assurance string `json:"assurance"`
	Verdict   string `json:"verdict"`
	Exit      int    `json:"exit_code"`
}

// fill appends receipts "r-0/run", "r-1/run", … up to n.
func fill(t testing.TB, l *Ledger, n int) {
	t.Helper()
	for i := int(l.Len()); i < n; i++ {
		_, err := l.Append(context.Background(), request(fmt.Sprintf("r-%d/run", i), outcome{"governed", "measured", "accepted", i}))
		must(t, err)
	}
}

func sample(t testing.TB, k Signer, n int) *durabletest.Disk {
	t.Helper()
	d := durabletest.New()
	l := openLedger(t, d, k)
	fill(t, l, n)
	must(t, l.Close())
	return d
}

// records returns what is in a journal.
func records(t testing.TB, fsys durable.FS, name string) (recs [][]byte) {
	t.Helper()
	l, err := durable.OpenLog(fsys, name, func(rec []byte) error { recs = append(recs, rec); return nil })
	must(t, err)
	must(t, l.Close())
	return recs
}

// rewritten returns a disk with these journals, as an attacker with knowledge of their form
// would write them.
func rewritten(t testing.TB, entries, heads [][]byte) *durabletest.Disk {
	t.Helper()
	d := durabletest.New()
	for name, recs := range map[string][][]byte{entriesFile: entries, headsFile: heads} {
		l, err := durable.OpenLog(d, name, nil)
		must(t, err)
		for _, r := range recs {
			must(t, l.Append(r))
		}
		must(t, l.Close())
	}
	return d
}

// edit changes an envelope's payload and leaves the signature.
func edit(t testing.TB, env []byte, old, new string) []byte {
	t.Helper()
	e, err := parseEnvelope(env)
	must(t, err)
	if !strings.Contains(string(e.payload), old) {
		t.Fatalf("payload has no %s: %s", old, e.payload)
	}
	payload := strings.Replace(string(e.payload), old, new, 1)
	return []byte(envelope1 + base64.StdEncoding.EncodeToString([]byte(payload)) + envelope2 + e.keyid + envelope3 + base64.StdEncoding.EncodeToString(e.sig) + envelope4)
}

func leafHash(env []byte) tlog.Hash { return tlog.RecordHash(env) }

// rootOf is the root of a ledger of these envelopes.
func rootOf(envs [][]byte) cell.Digest {
	t := &tree{}
	for _, e := range envs {
		t.add(leafHash(e))
	}
	return t.root()
}

// headWith returns a head with another text under the signature of note.
func headWith(note []byte, size int64, root cell.Digest) []byte {
	origin, _, _ := strings.Cut(string(note), "\n")
	_, sig, _ := strings.Cut(string(note), "\n\n")
	return fmt.Appendf(nil, "%s\n%d\n%s\n\n%s", origin, size, base64.StdEncoding.EncodeToString(root[:]), sig)
}

// wantProblems checks the reasons of a report, and the receipts they name.
func wantProblems(t testing.TB, r *Report, want ...string) {
	t.Helper()
	var got []string
	for _, p := range r.Problems {
		got = append(got, fmt.Sprintf("%s %d", p.Reason, p.Index))
	}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("problems %v, want %v", r.Problems, want)
	}
}

func verifyDisk(t testing.TB, fsys durable.FS, k *Key, known *Head) *Report {
	t.Helper()
	r, err := VerifyLedger(fsys, k.Public(), known)
	must(t, err)
	return r
}
