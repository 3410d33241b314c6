package receipt

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
)

// A sign-off counts with the signature of the key alone, and says what its subject is.
func TestOpenSignOff(t *testing.T) {
	key, err := OpenKey(durable.Disk(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	other, err := OpenKey(durable.Disk(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	says := SignOff{Decision: SignApprove, Approver: "alice", Ledger: "l", Cell: "c-1", Runs: []string{"r-1"}, Base: "sha256:1", After: "sha256:2", Policy: "sha256:3", At: time.Unix(1, 0).UTC()}
	digest := ChangesDigest(says.Base, says.After)
	good, err := SignOffBy(key, digest, says)
	if err != nil {
		t.Fatal(err)
	}
	if d, got, err := OpenSignOff(good, key.Public()); err != nil || d != digest || got.Cell != says.Cell || !got.At.Equal(says.At) {
		t.Errorf("a good one: %v, %+v, %v", d, got, err)
	}
	payload := func(envelope []byte) string {
		e, err := parseEnvelope(envelope)
		if err != nil {
			t.Fatal(err)
		}
		return string(e.payload)
	}
	with := func(s Signer, change func(string) string) []byte {
		b, err := seal(s, []byte(change(payload(good))))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	same := func(s string) string { return s }
	replace := func(old, new string) func(string) string {
		return func(s string) string { return strings.Replace(s, old, new, 1) }
	}
	named := bytes.Replace(with(other, same), []byte(other.Public().ID()), []byte(key.Public().ID()), 1)
	edited := bytes.Replace(good, []byte(base64.StdEncoding.EncodeToString([]byte(payload(good)))), []byte(base64.StdEncoding.EncodeToString([]byte(replace("c-1", "c-2")(payload(good))))), 1)
	elsewhere, err := SignOffBy(key, cell.Sum([]byte("x")), says)
	if err != nil {
		t.Fatal(err)
	}
	for what, test := range map[string]struct {
		envelope []byte
		kind     cell.Kind
	}{
		"another key":                       {with(other, same), cell.Denied},
		"another key under the name of one": {named, cell.Denied},
		"an edited statement":               {edited, cell.Denied},
		"another type":                      {with(key, replace(PredicateSignOff, PredicateVerdict)), cell.Invalid},
		"a member more":                     {with(key, replace(`"decision"`, `"x":1,"decision"`)), cell.Invalid},
		"another decision":                  {with(key, replace(`"approve"`, `"maybe"`)), cell.Invalid},
		"another subject":                   {elsewhere, cell.Invalid},
		"something behind it":               {with(key, func(s string) string { return s + "{}" }), cell.Invalid},
		"nothing":                           {[]byte("{}"), cell.Invalid},
	} {
		if _, _, err := OpenSignOff(test.envelope, key.Public()); cell.KindOf(err) != test.kind {
			t.Errorf("%s: %v, want kind %s", what, err, test.kind)
		}
	}
}

// What a receipt says of a sign-off is compared with what the approver signed.
func TestSignedOff(t *testing.T) {
	key, err := OpenKey(durable.Disk(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	says := SignOff{Decision: SignReject, Approver: "alice", Base: "1", After: "2"}
	envelope, err := SignOffBy(key, ChangesDigest("1", "2"), says)
	if err != nil {
		t.Fatal(err)
	}
	good := SignedOff{"alice", "ed25519:" + base64.StdEncoding.EncodeToString(key.Public().Raw()), SignReject, ChangesDigest("1", "2").String(), string(envelope)}
	if why := good.Fault(); why != "" {
		t.Errorf("a good one: %s", why)
	}
	for what, change := range map[string]func(*SignedOff){
		"decision": func(s *SignedOff) { s.Decision = SignApprove }, "name": func(s *SignedOff) { s.Approver = "bob" }, "digest": func(s *SignedOff) { s.Digest = "sha256:1" },
		"key": func(s *SignedOff) { s.Key = "ed25519:" + base64.StdEncoding.EncodeToString(make([]byte, 32)) }, "no key": func(s *SignedOff) { s.Key = "x" },
		"envelope": func(s *SignedOff) { s.Envelope = strings.Replace(s.Envelope, `"sig":"`, `"sig":"A`, 1) },
	} {
		bad := good
		change(&bad)
		if bad.Fault() == "" {
			t.Errorf("another %s is not noticed", what)
		}
	}
}

// The installation's key never signs what an approver would.
func TestAttestSignsNoSignOff(t *testing.T) {
	if _, err := new(Ledger).Attest(PredicateSignOff, nil, SignOff{}); cell.KindOf(err) != cell.Invalid {
		t.Errorf("it is signed: %v", err)
	}
}
