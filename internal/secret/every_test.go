package secret

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/secret/secrettest"
)

// The examples by which the users of this package are tested have every row of the table, and what
// is said of it there. PANDO_UPDATE=1 writes them.
func TestExamplesHaveEveryRow(t *testing.T) {
	rnd := rand.New(rand.NewPCG(21, 7))
	var b strings.Builder
	enc := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	for i := range shapes() {
		s := &shapes()[i]
		for _, anchor := range s.anchors {
			token := sampleOf(rnd, s, anchor)
			var where []string
			for _, u := range []struct {
				use
				name string
			}{{files, "files"}, {texts, "texts"}, {requests, "requests"}} {
				if s.not&u.use == 0 {
					where = append(where, u.name)
				}
			}
			if s.leads() && s.not&texts == 0 {
				where = append(where, "leads")
			}
			fmt.Fprintf(&b, "%s\t%s\t%s\t%s\t%s\n", s.what, enc(anchor), enc(token), enc(hidden(s, token)), strings.Join(where, " "))
		}
	}
	const file = "secrettest/tokens.txt"
	if os.Getenv("PANDO_UPDATE") != "" {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if old, err := os.ReadFile(file); err != nil || string(old) != b.String() {
		t.Fatalf("%s is not that of the table: write it with PANDO_UPDATE=1 (%v)", file, err)
	}
}

// hidden is the end of a token, which opens something: nothing of a key of many lines but its
// last is enough.
func hidden(s *shape, token string) string {
	switch {
	case strings.HasPrefix(s.anchors[0], "AKIA"):
		return token[4:20]
	case s.what == "password in a URL":
		return strings.TrimSuffix(token[strings.LastIndex(token, ":")+1:], "@host/x")
	case s.anchors[0] == "PRIVATE KEY":
		lines := strings.Split(strings.TrimSpace(token), "\n")
		return lines[len(lines)-2]
	}
	token = strings.TrimRight(token, "\r\n")
	return token[len(token)-12:]
}

// Every kind is found where the table says it is looked for, and nowhere else.
func TestEveryUseLooksForEveryKind(t *testing.T) {
	if len(shapes()) > maxShapes {
		t.Fatalf("%d rows: walk has room for %d", len(shapes()), maxShapes)
	}
	for _, k := range secrettest.Tokens(t) {
		t.Run(k.Name(), func(t *testing.T) {
			path := ""
			if k.Kind == "credential" {
				path = "conf/credentials.yml"
			}
			found := Scan(path, []byte(k.Value))
			if kind := len(found) > 0 && found[0].What == k.Kind; kind != k.Files {
				t.Errorf("in files: %v", found)
			}
			if k.Texts && !InText("x = "+k.Value+" y") {
				t.Error("not found in a text")
			}
			if k.Requests && (!InRequest("/x/"+k.Value) || !InRequest(k.Value+"/y")) {
				t.Error("not found in a request")
			}
			if k.Leads && !strings.HasPrefix(Prefix(k.Value), k.Anchor) {
				t.Errorf("its prefix is %q", Prefix(k.Value))
			}
		})
	}
}

// What is found may not be looked for with less in one use than another needs: a token that a
// file must not hold is redacted in a record.
func TestTextsMissNothingThatFilesFind(t *testing.T) {
	for i := range shapes() {
		if s := &shapes()[i]; s.not&files == 0 && s.not&texts != 0 && !s.named && s.anchors[0][0] != 2 {
			t.Errorf("%s is looked for in files and not in texts", s.what)
		}
	}
}

// A hostile text costs no more than its length: a search that looked at everything again at each
// anchor would take hours for a megabyte.
func TestSpansAreLinear(t *testing.T) {
	units := []string{"A PRIVATE KEY", "---- BEGIN SSH2 PRIVATE KEY ----", "Private-Lines: 9999\n", "Private-Lines: 9999\nAAAA\n", "1:AA", "eyJa.eyJ", "secret_access_key = "}
	for i := range shapes() {
		units = append(units, shapes()[i].anchors...)
	}
	for _, u := range units {
		text := strings.Repeat(u, 500_000/len(u))
		n := 0
		Spans([]byte(text), func(from, to int) {
			if from < 0 || to > len(text) {
				t.Fatalf("%q: a span outside the text: %d to %d", u, from, to)
			}
			n++
		})
		if n > len(text) {
			t.Errorf("%q: %d spans", u, n)
		}
		InRequest(text)
	}
}
