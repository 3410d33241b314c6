package credential

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"unicode/utf16"
)

const sample = "sk-ant-api03-Zx9/Kd+2mQ_7vLpR-4tYwB8nHsJfGcXeAuD1iOoE5r6T"

func scan(t testing.TB, text string, pieces int, values map[string]Secret) []Found {
	t.Helper()
	st := NewScanner(values).Stream()
	for len(text) > 0 {
		n := min(max(pieces, 1), len(text))
		if pieces == 0 {
			n = len(text)
		}
		st.Write([]byte(text[:n]))
		text = text[n:]
	}
	return st.Found()
}

// encodings are the ways in which FAILURES A9 wants a value found, and more.
func encodings(v string) map[string]string {
	percent, unicode, colour, doubled := "", "", "", ""
	for i := range len(v) {
		percent += fmt.Sprintf("%%%02x", v[i])
		unicode += fmt.Sprintf(`\u%04X`, v[i])
		colour += "\x1b[3" + string('1'+v[i]%7) + ";1m" + v[i:i+1]
		doubled += fmt.Sprintf(`\\u%04x`, v[i])
	}
	inJSON, _ := json.Marshal(colour)
	inside, _ := json.Marshal(map[string]string{"key": v})
	outside, _ := json.Marshal(map[string]string{"body": string(inside)})
	var wide []byte
	for _, u := range utf16.Encode([]rune(v)) {
		wide = append(wide, byte(u>>8), byte(u))
	}
	all := map[string]string{
		"plain":              v,
		"hex":                hex.EncodeToString([]byte(v)),
		"HEX":                strings.ToUpper(hex.EncodeToString([]byte(v))),
		"utf-16be":           string(wide),
		"url":                url.QueryEscape(v),
		"path":               url.PathEscape(v),
		"all percent":        percent,
		"partly percent":     strings.ReplaceAll(v, "-", "%2D"),
		"unicode":            unicode,
		"partly unicode":     strings.ReplaceAll(v, "-", `\u002d`),
		"hex escapes":        strings.ReplaceAll(v, "-", `\x2d`),
		"slashes":            strings.ReplaceAll(v, "/", `\/`),
		"json":               string(inside),
		"json in json":       string(outside),
		"unicode in json":    doubled,
		"colours":            colour,
		"colours in json":    string(inJSON),
		"go":                 fmt.Sprintf("%q", v),
		"two lines":          v[:20] + "\n" + v[20:],
		"two lines, indent":  v[:20] + "\r\n\t  " + v[20:],
		"two lines in json":  v[:20] + `\n` + v[20:],
		"basic":              "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:"+v)),
		"base64 of json":     base64.StdEncoding.EncodeToString(outside),
		"base64url, escaped": url.QueryEscape(base64.URLEncoding.EncodeToString([]byte(v))),
		"base64 in json":     strings.ReplaceAll(base64.StdEncoding.EncodeToString([]byte("ab"+v)), "/", `\/`),
	}
	for i := range 4 {
		for j := range 4 {
			around := strings.Repeat("\xff", i) + v + strings.Repeat(">", j)
			for name, enc := range map[string]*base64.Encoding{"std": base64.StdEncoding, "url": base64.URLEncoding, "raw std": base64.RawStdEncoding, "raw url": base64.RawURLEncoding} {
				all[fmt.Sprintf("base64 %s at %d, %d follow", name, i, j)] = enc.EncodeToString([]byte(around))
			}
		}
		var wrapped strings.Builder
		text := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("head ", 3+i) + v + strings.Repeat(" tail", 20)))
		for len(text) > 76 {
			wrapped.WriteString(text[:76] + "\n")
			text = text[76:]
		}
		all[fmt.Sprintf("base64 in lines of 76, %d", i)] = wrapped.String() + text
	}
	return all
}

func TestF9ScannerFindsEveryEncoding(t *testing.T) {
	long := strings.Repeat("0123456789abcdefghijklmnopqrstuvwxyz", 10)
	for _, v := range []string{sample, "ghp_9aK2mXq7Lw3Zt8Rb5Yc1Vd4Ne6Pf0Hj2Su7Q", "hunter2-hunter2-hunter2", long} {
		values := map[string]Secret{"other": NewSecret("0123456789-another-value"), "it": NewSecret(v)}
		for name, text := range encodings(v) {
			for _, pieces := range []int{0, 1, 7} {
				got := scan(t, "before "+text+" after", pieces, values)
				if len(got) == 0 || got[0].Credential != "it" {
					t.Errorf("%s of %.20q in pieces of %d: found %v in %.300q", name, v, pieces, got, text)
				}
				for _, f := range got {
					if f.Credential != "it" {
						t.Errorf("%s: found %v", name, f)
					}
				}
			}
		}
	}
}

// One that is found as it is need not be told in all the other ways.
func TestScannerSaysTheEncodingOnce(t *testing.T) {
	values := map[string]Secret{"it": NewSecret(sample)}
	for text, want := range map[string]string{
		sample: "plain",
		strings.ReplaceAll(sample, "-", `\u002d`): "plain, escaped as in JSON",
		strings.ReplaceAll(sample, "-", "%2d"):    "plain, escaped as in URLs",
		"\n" + sample + "\n":                      "plain",
		sample[:9] + "\x1b[1m" + sample[9:]:       "plain, with terminal escapes",
		sample[:30] + "\n" + sample[30:]:          "plain, over lines",
	} {
		got := scan(t, "x "+text+" y", 0, values)
		if len(got) != 1 || got[0].Encoding != want {
			t.Errorf("%q: %v, want %s", text, got, want)
		}
	}
}

func TestScannerLeavesTheRest(t *testing.T) {
	values := map[string]Secret{"it": NewSecret(sample), "short": NewSecret("hunter22")}
	for _, text := range []string{
		"", "hello", sample[:len(sample)-1], sample[1:], "hunter2", "hunt\ner22", base64.StdEncoding.EncodeToString([]byte("hunter2")),
		placeholder(ShapeOf(NewSecret(sample))), strings.Repeat("sk-ant-api03-", 1000), "\x1b[", `\u`, "%", "\\",
	} {
		if got := scan(t, text, 0, values); len(got) != 0 {
			t.Errorf("%q: %v", text, got)
		}
	}
	if got := scan(t, sample, 0, nil); len(got) != 0 {
		t.Errorf("no values: %v", got)
	}
}

func TestScannerFindsAcrossPieces(t *testing.T) {
	values := map[string]Secret{"it": NewSecret(sample)}
	for pad := pieceLen - 200; pad < pieceLen+10; pad += 3 {
		for name, form := range map[string]string{"plain": sample, "json": strings.ReplaceAll(sample, "-", `\u002d`)} {
			if got := scan(t, strings.Repeat(".", pad)+form+strings.Repeat("\\n", 10), 0, values); len(got) != 1 {
				t.Fatalf("%s after %d bytes: %v", name, pad, got)
			}
		}
	}
}

// The table of the automaton against a plain search.
func TestAutomatonFindsAll(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	word := func(n int) string {
		b := make([]byte, 1+rnd.IntN(n))
		for i := range b {
			b[i] = "abc"[rnd.IntN(3)]
		}
		return string(b)
	}
	for range 2000 {
		var list []needle
		for range 1 + rnd.IntN(6) {
			list = append(list, needle{text: word(5)})
		}
		text := word(40)
		want := map[[2]int]bool{}
		for k, n := range list {
			for i := range text {
				if strings.HasPrefix(text[i:], n.text) {
					want[[2]int{k, i + len(n.text)}] = true
				}
			}
		}
		newAutomaton(list).run(0, []byte(text), func(n, end int) {
			if !want[[2]int{n, end}] {
				t.Fatalf("%v in %q: %d at %d is not there, or twice", list, text, n, end)
			}
			delete(want, [2]int{n, end})
		})
		if len(want) > 0 {
			t.Fatalf("%v in %q: not found: %v", list, text, want)
		}
	}
}

// Whatever the pieces, the same is found, and memory does not grow.
func FuzzScanner(f *testing.F) {
	for _, e := range encodings(sample) {
		f.Add([]byte(e), uint16(3))
	}
	s := NewScanner(map[string]Secret{"it": NewSecret(sample), "b": NewSecret("hunter22")})
	f.Fuzz(func(t *testing.T, text []byte, cut uint16) {
		whole, parts := s.Stream(), s.Stream()
		whole.Write(text)
		for rest := text; len(rest) > 0; {
			n := min(int(cut%97)+1, len(rest))
			parts.Write(rest[:n])
			rest = rest[n:]
		}
		a, b := whole.Found(), parts.Found()
		if len(a) != len(b) {
			t.Fatalf("%v in one piece, %v in pieces of %d", a, b, int(cut%97)+1)
		}
		for i := range a {
			if a[i].Credential != b[i].Credential || a[i].Encoding != b[i].Encoding {
				t.Fatalf("%v in one piece, %v in pieces of %d", a, b, int(cut%97)+1)
			}
		}
		if bytes.Contains(text, []byte(sample)) && len(a) == 0 {
			t.Fatal("not found")
		}
	})
}

func BenchmarkScanner(b *testing.B) {
	s := NewScanner(map[string]Secret{"it": NewSecret(sample), "b": NewSecret("ghp_9aK2mXq7Lw3Zt8Rb5Yc1Vd4Ne6Pf0Hj2Su7Q")})
	code := bytes.Repeat([]byte("\tif err := json.Unmarshal(b, &v); err != nil { // a line of code\n\t\treturn fmt.Errorf(\"%w\\n\", err)\n"), 1000)
	noise := make([]byte, 1<<20)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	for name, text := range map[string][]byte{"code": code, "binary": noise} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				s.Stream().Write(text)
			}
		})
	}
}

// A JSON Web Token is found by its signature: what is before that is in many tokens.
func TestScannerKnowsTokensBySignature(t *testing.T) {
	value := jwtOf(claims)
	values := map[string]Secret{"it": NewSecret(value)}
	signed, signature := value[:strings.LastIndex(value, ".")+1], value[strings.LastIndex(value, ".")+1:]
	for text, want := range map[string]int{value: 1, "x" + signature: 1, signed: 0, signed + "another-signature-of-the-same-length": 0} {
		if got := scan(t, text, 0, values); len(got) != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
