package secret

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"strings"
	"testing"
)

// Live-looking tokens are made while the test runs, so that no tool that looks
// for tokens finds any in this file.

func randomOf(rnd *rand.Rand, set *byteSet, n int) string {
	var chars []byte
	for c, in := range set {
		if in && c != '=' && c != '.' && c != '/' {
			chars = append(chars, byte(c))
		}
	}
	for {
		b := make([]byte, n)
		for i := range b {
			b[i] = chars[rnd.IntN(len(chars))]
		}
		if looksRandom(b) {
			return string(b)
		}
	}
}

func withCRC(body string) string {
	sum, out := crc32.ChecksumIEEE([]byte(body)), make([]byte, 6)
	for i := 5; i >= 0; i-- {
		out[i] = base62[sum%62]
		sum /= 62
	}
	return body + string(out)
}

func bech32Sample(rnd *rand.Rand, prefix string) string {
	const chars = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
	for {
		data := randomOf(rnd, newByteSet(chars), 52)
		// The checksum is linear: find it digit by digit, from the polynomial's value.
		for _, tail := range []string{bech32Tail(prefix, data)} {
			if looksRandom([]byte(data + tail)) {
				return strings.ToUpper(prefix) + "1" + strings.ToUpper(data+tail)
			}
		}
	}
}

func bech32Tail(prefix, data string) string {
	const chars = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
	sum := uint32(1)
	var values []uint32
	for _, c := range prefix {
		values = append(values, uint32(c)>>5)
	}
	values = append(values, 0)
	for _, c := range prefix {
		values = append(values, uint32(c)&31)
	}
	for _, c := range data {
		values = append(values, uint32(strings.IndexRune(chars, c)))
	}
	for _, v := range append(values, 0, 0, 0, 0, 0, 0) {
		top := sum >> 25
		sum = sum&0x1ffffff<<5 ^ v
		for i, g := range []uint32{0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd, 0x2a1462b3} {
			if top>>i&1 == 1 {
				sum ^= g
			}
		}
	}
	sum ^= 1
	out := ""
	for i := range 6 {
		out += string(chars[sum>>(5*(5-i))&31])
	}
	return out
}

func pemSample(rnd *rand.Rand, kind string) string {
	der := make([]byte, 200)
	for i := range der {
		der[i] = byte(rnd.Uint32())
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// scanSamples makes tokens of the shapes that have more than an anchor and a
// random body.
func scanSamples(rnd *rand.Rand) map[string]func(anchor string) string {
	b64 := base64URL
	return map[string]func(string) string{
		"ghp_": func(a string) string { return a + withCRC(randomOf(rnd, alnum, 30)) },
		"GitHub installation token": func(a string) string {
			return a + "739102_eyJ" + randomOf(rnd, b64, 40) + ".eyJ" + randomOf(rnd, b64, 200) + "." + randomOf(rnd, b64, 200)
		},
		"Telegram bot token": func(a string) string { return "7316450982" + a + randomOf(rnd, b64, 33) },
		"T3BlbkFJ":           func(a string) string { return "sk-" + randomOf(rnd, alnum, 20) + a + randomOf(rnd, alnum, 20) },
		"AWS access key": func(a string) string {
			return a + randomOf(rnd, awsID, 16) + "\nsecret = " + randomOf(rnd, alnum, 38) + "aB7"[1:]
		},
		"AWS secret key":          func(a string) string { return a + "\": \"" + randomOf(rnd, alnum, 37) + "aB7" },
		"Azure storage key":       func(a string) string { return a + randomOf(rnd, alnum, 86) + "==" },
		"Azure shared access key": func(a string) string { return a + randomOf(rnd, alnum, 43) + "=" },
		"Azure client secret":     func(a string) string { return "k7B" + a + randomOf(rnd, alnum, 32) },
		"SendGrid key":            func(a string) string { return a + randomOf(rnd, alnum, 22) + "." + randomOf(rnd, alnum, 43) },
		"PRIVATE KEY":             func(a string) string { return pemSample(rnd, "RSA PRIVATE KEY") },
		"Private-Lines: ":         func(a string) string { return a + "8\r\n" + randomOf(rnd, alnum, 64) + "\r\n" },
		"AGE-SECRET-KEY-1":        func(a string) string { return bech32Sample(rnd, "age-secret-key-") },
		"AGE-SECRET-KEY-PQ-1":     func(a string) string { return bech32Sample(rnd, "age-secret-key-pq-") },
		"LS0tLS1CRUdJTi": func(string) string {
			return base64.StdEncoding.EncodeToString([]byte(pemSample(rnd, "RSA PRIVATE KEY")))
		},
		"JSON Web Token": func(a string) string {
			return a + randomOf(rnd, b64, 30) + ".eyJ" + randomOf(rnd, b64, 40) + "." + randomOf(rnd, b64, 43)
		},
		"Bearer ": func(a string) string { return a + randomOf(rnd, b64, 40) },
		"bearer ": func(a string) string { return a + randomOf(rnd, b64, 40) },
		"HTTP authentication": func(a string) string {
			return a + base64.StdEncoding.EncodeToString([]byte("user:"+randomOf(rnd, alnum, 12)))
		},
		"password in a URL": func(a string) string { return "https" + a + "user:" + randomOf(rnd, alnum, 12) + "@host/x" },
		"\x02\x01\x00\x30":  func(a string) string { return "\x30\x82\x04\xa4" + a + strings.Repeat("k", 40) },
		"\x02\x01\x00\x02":  func(a string) string { return "\x30\x82\x04\xa4" + a + strings.Repeat("k", 40) },
		"\x02\x01\x01\x04":  func(a string) string { return "\x30\x77" + a + strings.Repeat("k", 40) },
	}
}

// sampleOf makes a token of a shape.
func sampleOf(rnd *rand.Rand, s *shape, anchor string) string {
	samples := scanSamples(rnd)
	for _, key := range []string{anchor, s.what} {
		if f := samples[key]; f != nil {
			return f(anchor)
		}
	}
	if s.named {
		return anchor + ": " + randomOf(rnd, alnum, 12)
	}
	if s.what == "GitHub token" {
		return samples["ghp_"](anchor)
	}
	n := s.min
	if s.max == 0 {
		n += 7
	}
	return anchor + randomOf(rnd, s.body, n)
}

// Each row of the table finds its tokens, wherever they stand, and does not
// find what is almost one.
func TestF21EveryShapeIsFound(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range shapes() {
		s := &shapes()[i]
		if s.not&files != 0 {
			continue
		}
		for _, anchor := range s.anchors {
			t.Run(s.what+"/"+anchor, func(t *testing.T) {
				if s.rare+3 > len(anchor) {
					t.Fatal("rare is outside the anchor")
				}
				path := ""
				if s.named {
					path = "conf/credentials.yml"
				}
				for range 20 {
					token := sampleOf(rnd, s, anchor)
					for _, form := range []string{"%s", "KEY=%s\n", "export KEY=\"%s\"", "{\"a\":\"%s\"}", "line\n  - %s", "user:%s@host", "\x00\x01%s\xff"} {
						if strings.HasPrefix(anchor, "\x02") && form != "%s" {
							continue // a file, not a text
						}
						text := fmt.Sprintf(form, token)
						found := Scan(path, []byte(text))
						if len(found) != 1 || found[0].What != s.what {
							t.Fatalf("Scan(%q) = %v", text, found)
						}
					}
					if strings.HasPrefix(anchor, "\x02") {
						if f := Scan("", []byte("x"+token)); len(f) > 0 {
							t.Fatalf("found inside a file: %v", f)
						}
						continue
					}
					// Quoted in JSON, line ends written out, it is still one.
					js, _ := json.Marshal("a\n" + token + "\n")
					if f := Scan(path, js); len(f) != 1 {
						t.Fatalf("Scan(%s) = %v", js, f)
					}
					for name, near := range nearMisses(rnd, s, anchor, token) {
						if f := Scan(path, []byte(near)); len(f) > 0 {
							t.Fatalf("%s: Scan(%q) = %v", name, near, f)
						}
					}
				}
			})
		}
	}
}

// nearMisses are texts like the token that no service would take.
func nearMisses(rnd *rand.Rand, s *shape, anchor, token string) map[string]string {
	at := strings.Index(token, anchor) + len(anchor)
	near := map[string]string{
		"anchor alone": anchor,
		"cut off":      token[:min(at+9, len(token))],
		"all the same": token[:at] + strings.Repeat("x", 400),
		"counted":      token[:at] + strings.Repeat("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", 8)[:max(s.min, 40)],
		"dots":         token[:at] + "..." + strings.Repeat(".", 80),
		"variable":     token[:at] + "${TOKEN}",
		"placeholder":  token[:at] + "<your-token-here-and-some-more-characters>",
		"other case":   strings.ToUpper(strings.ToLower(anchor)) + "EXAMPLE" + strings.Repeat("K9", 30),
	}
	if s.find == nil && !s.inside {
		near["in a word"] = "abc" + token
	}
	if s.find == nil && s.max > 0 {
		near["too long"] = token + randomOf(rnd, s.body, s.max)
		if n := at + s.min - 1; n > 0 {
			near["one short"] = token[:n]
		}
	}
	if s.check != nil || strings.Contains(s.what, "age ") {
		b := []byte(token)
		for _, i := range []int{len(b) - 1, at + 22} {
			if b[i] = 'Z'; token[i] == 'Z' {
				b[i] = 'Y'
			}
		}
		near["check fails"] = strings.ReplaceAll(string(b), "eyJ", "eyX")
	}
	return near
}
