package receipt

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

func redactor(t testing.TB, values ...string) *Redactor {
	t.Helper()
	r := new(Redactor)
	for _, v := range values {
		must(t, r.Add(v))
	}
	return r
}

// A value with everything that is escaped somewhere.
const nasty = "p4ss/w+rd \"quo\\ted\" <&> ü%41\ttab end"

// F9: a known value is found in whatever form it is written.
func TestF9KnownValuesInAllForms(t *testing.T) {
	for _, v := range []string{"hunter2-hunter2", nasty} {
		r := redactor(t, v)
		j, _ := json.Marshal(v)
		inJSON := string(j[1 : len(j)-1])
		jj, _ := json.Marshal(string(j))
		var plainJSON bytes.Buffer
		enc := json.NewEncoder(&plainJSON)
		enc.SetEscapeHTML(false)
		must(t, enc.Encode(v))
		var ascii strings.Builder
		for _, c := range v {
			fmt.Fprintf(&ascii, "\\u%04x", c)
		}
		var percent, colour strings.Builder
		for _, c := range []byte(v) {
			fmt.Fprintf(&percent, "%%%02X", c)
		}
		for i, c := range v {
			colour.WriteRune(c)
			if i%2 == 0 {
				colour.WriteString("\x1b[1;31m")
			} else {
				colour.WriteString("\x1b[0m\x1b(B\x1b[K")
			}
		}
		inColour, _ := json.Marshal(colour.String())
		forms := map[string]string{
			"plain":           v,
			"JSON":            inJSON,
			"JSON, not HTML":  strings.Trim(strings.TrimSpace(plainJSON.String()), `"`),
			"JSON in JSON":    string(jj),
			"ASCII JSON":      ascii.String(),
			"URL query":       url.QueryEscape(v),
			"URL path":        url.PathEscape(v),
			"percent":         percent.String(),
			"percent, lower":  strings.ToLower(percent.String()),
			"hex":             hex.EncodeToString([]byte(v)),
			"HEX":             strings.ToUpper(hex.EncodeToString([]byte(v))),
			"colours":         colour.String(),
			"colours in JSON": string(inColour),
			"colour in URL":   percent.String()[:9] + "\x1b[0m" + percent.String()[9:],
			"Go":              fmt.Sprintf("%q", v),
			"window title":    "\x1b]0;" + v + "\x07",
			"base64 of JSON":  base64.StdEncoding.EncodeToString([]byte(`{"auth":"` + v + `"}`)),
		}
		for i := range 4 {
			for j := range 4 {
				around := strings.Repeat("<", i) + v + strings.Repeat(">", j)
				forms[fmt.Sprintf("base64 at %d, %d follow", i, j)] = base64.StdEncoding.EncodeToString([]byte(around))
				forms[fmt.Sprintf("base64url at %d, %d follow", i, j)] = base64.RawURLEncoding.EncodeToString([]byte(around))
			}
		}
		wrapped := base64.StdEncoding.EncodeToString([]byte("some user:" + v))
		forms["base64 on lines"] = wrapped[:20] + "\n" + wrapped[20:30] + "\r\n   " + wrapped[30:]
		forms["base64 on lines in JSON"] = wrapped[:20] + `\n` + wrapped[20:]
		forms["base64 in URL"] = url.QueryEscape(wrapped)
		for name, form := range forms {
			text := "before " + form + " after"
			got := r.String(text)
			if !strings.Contains(got, Redacted) || !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") {
				t.Errorf("%s of %q:\n%q became\n%q", name, v, text, got)
			}
			if leaks(r, got) {
				t.Errorf("%s: %q is still in %q", name, v, got)
			}
			// Nearly nothing of the form is left.
			if rest := len(got) - len("before  after") - len(Redacted); !strings.HasPrefix(name, "base64") && name != "window title" && name != "JSON in JSON" && name != "Go" && !strings.HasPrefix(name, "colours") && rest != 0 {
				t.Errorf("%s: %d characters are left: %q", name, rest, got)
			}
		}
	}
}

// leaks reports whether a known value can still be read in s.
func leaks(r *Redactor, s string) bool { return len(r.find([]byte(s))) != 0 }

func TestF9TokenShapes(t *testing.T) {
	r := new(Redactor)
	id := "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8S9t0"
	jwt := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"1"}`)) + "." + id
	pem := "-----BEGIN RSA PRIVATE KEY-----\nMIIEow" + id + "\n" + id + "\n-----END RSA PRIVATE KEY-----"
	for _, secret := range []string{
		"ghp_" + id[:36], "gho_" + id[:36], "ghs_" + id[:36], "github_pat_11A_" + id, "glpat-" + id[:20], "glpat-ab_cd-" + id[:20],
		"sk-ant-api03-" + id, "sk-" + id, "sk-proj-" + id, "AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE",
		"xoxb-123456789012-" + id, "xoxp-1-" + id, "AIza" + id[:35], "npm_" + id[:36], "pypi-AgEIcHlwaS5vcmc" + id, "hf_" + id[:34],
		"sk_live_" + id, "ya29." + id, jwt, jwt[:strings.LastIndex(jwt, ".")+1], pem, strings.Replace(pem, "RSA ", "", 2), strings.ReplaceAll(pem, "\n", `\n`),
		base64.StdEncoding.EncodeToString([]byte(pem)), "AGE-SECRET-KEY-1" + strings.Repeat("QPZRY9X8", 7) + "GF",
	} {
		for _, around := range [][2]string{{"", ""}, {"token=", " x"}, {`{"a":"`, `"}`}, {"--key=", "\n"}, {`"\n`, `\n"`}, {"\x1b[32m", "\x1b[0m"}} {
			text := around[0] + secret + around[1]
			if got := r.String(text); got != around[0]+Redacted+around[1] {
				t.Errorf("%q became %q", text, got)
			}
		}
		half := len(secret) / 2
		if got := r.String("a " + secret[:half] + "\x1b[1m" + secret[half:] + " b"); got != "a [secret] b" {
			t.Errorf("split by an escape: %q", got)
		}
	}
	for text, want := range map[string]string{
		"Authorization: Bearer abc.def-0123456789": "Authorization: Bearer [secret]",
		"Authorization: Basic dXNlcjpodW50ZXIy":    "Authorization: Basic [secret]",
		"https://user:hunter2@host/x":              "https://user:[secret]@host/x",
		"postgres://u:p@h:5432/db?x=y":             "postgres://u:[secret]@h:5432/db?x=y",
		pem[:80]:                                   Redacted,
		"-----BEGIN PRIVATE KEY-----\nabc":         Redacted,
	} {
		if got := r.String(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// What merely resembles a secret stays, or reports become useless.
func TestRedactorLeavesTheRest(t *testing.T) {
	r := redactor(t, "hunter2-hunter2")
	for _, s := range []string{
		"", "hello", "task-something-long-and-ordinary", "disk-usage-report-2024-01-02-final", "sk-learn-compatible-estimator-api", "npm_config_registry=x",
		"npm_lifecycle_event", "https://host:8080/a@b", "git@github.com:a/b", "https://github.com/a/b", "Basic authentication is used", "Bearer of bad news, everyone is here",
		"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----", "eyJ is how JSON begins in base64", "AKIA", "hf_transfer", "pypi-something-or-other", "xoxb-",
		"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "hunter2", "hunter2-hunter", "\x1b[31mred\x1b[0m \\u0041 %41 \\n a\nb", "100% \\", "\x1b", "\x1b[", "[secret]",
	} {
		if got := r.String(s); got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
}

func TestRedactorArgs(t *testing.T) {
	r := redactor(t, "hunter2-hunter2", "another-value")
	args := []string{"curl", "-H", "X: hunter2-hunter2", "--user=another-value", "https://a:b@c/"}
	want := []string{"curl", "-H", "X: [secret]", "--user=[secret]", "https://a:[secret]@c/"}
	if got := r.Args(args); !slices.Equal(got, want) || args[2] != "X: hunter2-hunter2" {
		t.Errorf("%q", got)
	}
	if got := r.String("a hunter2-hunter2another-value b \xff\xfe"); got != "a [secret] b \xff\xfe" {
		t.Errorf("%q", got)
	}
}

func TestRedactorLongAndShortValues(t *testing.T) {
	key := "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ\nabcdefghijklmnopqrstuvwxyz\n-----END PRIVATE KEY-----\n"
	r := redactor(t, key)
	if got := r.String("| MC4CAQAwBQYDK2VwBCIEIJ\n| abcdefghijklmnopqrstuvwxyz"); got != "| [secret]\n| [secret]" {
		t.Errorf("lines of a known key: %q", got)
	}
	if got := r.String("x " + strings.TrimSpace(key) + " y"); got != "x [secret] y" {
		t.Errorf("%q", got)
	}
	r = redactor(t, "  four \n")
	if got := r.String("a four b"); got != "a [secret] b" {
		t.Errorf("%q", got)
	}
	for _, short := range []string{"", "abc", "  a  "} {
		if err := r.Add(short); cell.KindOf(err) != cell.Invalid {
			t.Errorf("%q was accepted: %v", short, err)
		}
	}
}

// Lines are joined for long values only: short ones would be found anywhere.
func TestRedactorJoinsLinesForLongValues(t *testing.T) {
	r := redactor(t, "abcdefgh", "abcdefghijklmnopqrst")
	if got := r.String("abcd\nefgh"); got != "abcd\nefgh" {
		t.Errorf("%q", got)
	}
	if got := r.String("x abcdefghi\n  jklmnopqrst y"); got != "x [secret] y" {
		t.Errorf("%q", got)
	}
}

func TestRedactorConcurrently(t *testing.T) {
	r := new(Redactor)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 20 {
				v := fmt.Sprintf("value-%d-%d", i, j)
				if err := r.Add(v); err != nil {
					t.Error(err)
				}
				if got := r.String("<" + v + ">"); got != "<[secret]>" {
					t.Errorf("%q", got)
				}
			}
		})
	}
	wg.Wait()
}

// Aho-Corasick against a plain search.
func TestMatcherFindsAll(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	word := func(n int) string {
		b := make([]byte, 1+rnd.IntN(n))
		for i := range b {
			b[i] = "abc"[rnd.IntN(3)]
		}
		return string(b)
	}
	for range 2000 {
		m := newMatcher()
		var words []string
		for range 1 + rnd.IntN(6) {
			w := word(5)
			words = append(words, w)
			m.add(needle{text: w})
		}
		m.link()
		text := word(40)
		longest := map[int]string{}
		for _, w := range words {
			for i := range text {
				if strings.HasPrefix(text[i:], w) && len(w) > len(longest[i+len(w)]) {
					longest[i+len(w)] = w
				}
			}
		}
		m.find([]byte(text), func(n needle, end int) {
			if longest[end] != n.text {
				t.Fatalf("%q in %q at %d: found %q, want %q", words, text, end, n.text, longest[end])
			}
			delete(longest, end)
		})
		if len(longest) > 0 {
			t.Fatalf("%q in %q: not found %v", words, text, longest)
		}
	}
}

// Texts that make a careless search slow: one that looks at everything again
// at each prefix would take hours for a megabyte.
func TestRedactorIsLinear(t *testing.T) {
	r := redactor(t, strings.Repeat("a", 2000)+"b", nasty)
	for name, unit := range hostile {
		if text := strings.Repeat(unit, 1_000_000/len(unit)); len(r.String(text)) > len(text) {
			t.Errorf("%s: the text became longer", name)
		}
	}
}

var hostile = map[string]string{
	"prefixes": "sk-sk-sk-", "AKIA": "AKIAAKIA", "jwt": "eyJeyJeyJ.", "jwt dots": "eyJaaaaaaaaaaaa.", "pem": "-----BEGIN PRIVATE KEY-----", "pem with ends": "-----BEGIN X-----END ",
	"escapes": "\x1b[\x1b[", "backslashes": `\\\\`, "unicode": `\ud83d`, "percent": "%%25", "urls": "://a:", "lines": "\n\n a", "nearly the value": strings.Repeat("a", 1999) + "c", "base64": "LS0tLS1CRUdJTi",
	"Basic": "Basic Basic ", "bearer": "Bearer Bearer-",
}
