package receipt

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
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
		"another way to write it":           {with(key, replace(`"cell":"c-1"`, `"cell":"c-0","cell":"c-1"`)), cell.Invalid},
		"something behind it":               {with(key, func(s string) string { return s + "{}" }), cell.Invalid},
		"nothing":                           {[]byte("{}"), cell.Invalid},
	} {
		if _, _, err := OpenSignOff(test.envelope, key.Public()); cell.KindOf(err) != test.kind {
			t.Errorf("%s: %v, want kind %s", what, err, test.kind)
		}
	}
}

// What a receipt says of a sign-off is compared with what the approver signed, and with what the receipt is of.
func TestSignedOff(t *testing.T) {
	key, err := OpenKey(durable.Disk(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	says := SignOff{Decision: SignReject, Approver: "alice", Ledger: "here", Cell: "c-1", Runs: []string{"r-1"}, Base: "1", After: "2", Commit: "3", Message: "m", At: time.Unix(1, 0).UTC()}
	digest := ChangesDigest("1", "2").String()
	envelope, err := SignOffBy(key, ChangesDigest("1", "2"), says)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{"act": SignReject, "cell": "c-1", "digest": digest, "sign_off": map[string]any{
		"approver": "alice", "key": "ed25519:" + base64.StdEncoding.EncodeToString(key.Public().Raw()), "decision": SignReject, "digest": digest, "commit": "3", "runs": []string{"r-1"},
		"message": "m", "at": says.At, "envelope": string(envelope)}})
	if err != nil {
		t.Fatal(err)
	}
	good := func() (s SignedOff) {
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := good(); s.Fault("here") != "" {
		t.Errorf("a good one: %s", s.Fault("here"))
	}
	if s := (SignedOff{Act: "accept"}); s.Fault("here") != "" {
		t.Errorf("another act: %s", s.Fault("here"))
	}
	for what, change := range map[string]func(*SignedOff){
		"decision": func(s *SignedOff) { s.Says.Decision = SignApprove }, "name": func(s *SignedOff) { s.Says.Approver = "bob" }, "digest": func(s *SignedOff) { s.Says.Digest = "sha256:1" },
		"key": func(s *SignedOff) { s.Says.Key = "ed25519:" + base64.StdEncoding.EncodeToString(make([]byte, 32)) }, "no key": func(s *SignedOff) { s.Says.Key = "x" },
		"envelope": func(s *SignedOff) { s.Says.Envelope = strings.Replace(s.Says.Envelope, `"sig":"`, `"sig":"A`, 1) },
		"commit":   func(s *SignedOff) { s.Says.Commit = "" }, "run": func(s *SignedOff) { s.Says.Runs[0] = "r-2" }, "message": func(s *SignedOff) { s.Says.Message = "n" },
		"time": func(s *SignedOff) { s.Says.At = s.Says.At.Add(time.Second) }, "act": func(s *SignedOff) { s.Act = SignApprove }, "cell": func(s *SignedOff) { s.Cell = "c-2" },
		"result": func(s *SignedOff) { s.Digest = "sha256:1" }, "statement": func(s *SignedOff) { s.Says = nil },
	} {
		bad := good()
		change(&bad)
		if bad.Fault("here") == "" {
			t.Errorf("another %s is not noticed", what)
		}
	}
	if s := good(); s.Fault("elsewhere") == "" {
		t.Error("another installation is not noticed")
	}
}

// The installation's key never signs what an approver would.
func TestAttestSignsNoSignOff(t *testing.T) {
	if _, err := new(Ledger).Attest(PredicateSignOff, nil, SignOff{}); cell.KindOf(err) != cell.Invalid {
		t.Errorf("it is signed: %v", err)
	}
}
