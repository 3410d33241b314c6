package gateway

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/wire"
)

// No value of a credential is in a recording, wherever the cell or the host wrote it, nor what else lets its
// reader in; placeholders stay.
func TestRecordingHasNoCredentials(t *testing.T) {
	t.Parallel()
	const value, placeholder = "s3cr3t-value-0123456789", "placeholder-0123456789x"
	list, err := newLent([]cell.Lent{{Handle: "api", Secret: value, Placeholder: placeholder, As: "Authorization: Bearer {secret}", For: []string{"https://a.test/**"}}})
	if err != nil {
		t.Fatal(err)
	}
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	to, err := wire.NewRecorder(&file, key.Recipient().String())
	if err != nil {
		t.Fatal(err)
	}
	x := &exchange{c: &conn{id: "c1"}, l: &compiledPolicy{lent: list}}
	x.access = cell.Access{Scheme: "https", Host: "a.test", Port: 443}
	x.c.access = x.access
	in := &http.Request{Method: "POST", URL: &url.URL{Path: "/" + value, RawQuery: "q=" + value}, Body: io.NopCloser(strings.NewReader("")), Header: http.Header{
		"Authorization": {"Bearer " + placeholder}, "Cookie": {"own-cookie"}, "Proxy-Authorization": {"own-proxy"}, "X-Other": {"kept " + value},
	}}
	k := (&recorder{to}).begin(x, in)
	for _, piece := range []string{"body " + value[:9], value[9:] + " and " + value[:20]} {
		k.request([]byte(piece), nil) // it ends early, within a value
	}
	k.answers(200, http.Header{"Set-Cookie": {"its-cookie"}, "X-Echo": {value}})
	k.answer([]byte("echo " + value + "."))
	k.whole(http.Header{"X-Trailer": {value}})
	k.end()
	if done := to.Close(); done.Exchanges != 1 {
		t.Fatalf("%+v", done)
	}
	clear, err := age.Decrypt(&file, key)
	if err != nil {
		t.Fatal(err)
	}
	exchanges, _, err := wire.Read(clear)
	if err != nil || len(exchanges) != 1 {
		t.Fatalf("%d, %v", len(exchanges), err)
	}
	e := exchanges[0]
	all := []string{e.Path, string(e.Request.Body), string(e.Answer.Body)}
	for _, h := range []http.Header{e.Request.Header, e.Answer.Header, e.Answer.Trailer} {
		for name, values := range h {
			all = append(all, name+": "+strings.Join(values, " "))
		}
	}
	text := strings.Join(all, "\n")
	for _, not := range []string{value[:12], "own-cookie", "own-proxy", "its-cookie"} {
		if strings.Contains(text, not) {
			t.Errorf("%q is in the recording:\n%s", not, text)
		}
	}
	for _, want := range []string{"Authorization: Bearer " + placeholder, "X-Other: kept ", "X-Echo: ", "X-Trailer: ", "echo ", "body "} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in the recording:\n%s", want, text)
		}
	}
}
