package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What vendors print in their documents, and what tests are full of.
func TestScanLeavesExamplesAlone(t *testing.T) {
	pem := "-----BEGIN RSA " + "PRIVATE KEY-----\n"
	for _, text := range []string{
		"AKIA" + "IOSFODNN7EXAMPLE\nwJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
		"AKIA" + "Z3LQ5TWNR2XKVUPB alone, with sha 3f786850e387550fdab836ed7e6dc881de23001b",
		"ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a", // GitHub's documentation: checksum wrong
		"AI" + "zaSyDaGmWKa4JsXZ-HjGw7ISLn_3namBGewQe",
		"AccountName=devstoreaccount1;AccountKey=" + "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;",
		"sk-ant-" + "api03-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
		"sk_live_" + "your_key_goes_here_please", "sk_test_" + "4eC39HqLyjWDarjtT1zdp7dc",
		"xoxb-" + "123456789012-1234567890123-AbCdEfGhIjKlMnOpQrStUvWx",
		"hf_" + strings.Repeat("a", 34), "hf_hub_download(repo_id=repo, filename=name)", "npm_config_registry_and_other_settings",
		"eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
		pem, pem + "MIIEpAIBAAKCAQEA...\n-----END", pem + "...\n-----END RSA " + "PRIVATE KEY-----", `const header = "` + strings.TrimSpace(pem) + `"; if (s.startsWith(header)) return decode(s);`,
		"strings.Contains(s, \"PRIVATE " + "KEY\") || strings.Contains(s, \"AAAAB3NzaC1yc2EAAAADAQABAAABgQC7vYkmHhGkqz\")",
		"-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAu1SU1LfVLPHCozMxH2Mo\n-----END PUBLIC KEY-----",
		"task-" + "0d599f0ec05c3bda8c3b8a68c32a1b47", "risk-0d599f0ec05c3bda8c3b8a68c32a1b47",
		"public-encrypt AGE-SECRET-" + "KEY-1QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ",
		"usr/Lib/x86/qt5/kPkg/zbin/vm9/wq/Jt/abdc AKIA" + "Z3LQ5TWNR2XKVUPB",
		"AKIA" + "Z3LQ5TWNR2XKVUPB with 3f786850E387550fdab836ed7e6dc881de23001b",
		"AKIA" + "Z3LQ5TWNR2XKVUPB" + strings.Repeat(" ", 1100) + "kY7f+Q2xWm9ZsLr4TbVn8HcJd1GpEaUo6RiXt3Bq",
		"npm_" + "bcdefghijklmnopqrstuvwxyzBCDEFGHIJKL", "npm_" + strings.Repeat("kZ3mQ9vB7", 4), "npm_" + "kZ3mQ9vB7tR5wzzzzzzzzzX8cV2nM4pL6jHu",
		"\x30\x82\xa4\x02\x01\x00\x30" + strings.Repeat("k", 40), "\x30\x81\x04\xa4\x02\x01\x00\x30" + strings.Repeat("k", 40),
		"GET /webhooks https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX",
	} {
		if f := Scan("", []byte(text)); len(f) > 0 {
			t.Errorf("Scan(%q) = %v", text, f)
		}
	}
}

func TestScanPrivateKeyForms(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	key := pemSample(rnd, "RSA "+"PRIVATE KEY")
	lines := strings.Split(strings.TrimSpace(key), "\n")
	js, _ := json.Marshal(map[string]string{"private_key": key})
	for name, text := range map[string]string{
		"pkcs8":       pemSample(rnd, "PRIVATE KEY"),
		"ec":          pemSample(rnd, "EC PRIVATE KEY"),
		"openssh":     pemSample(rnd, "OPENSSH PRIVATE KEY"),
		"pgp":         strings.Replace(pemSample(rnd, "PGP PRIVATE KEY BLOCK"), "-----\n", "-----\nVersion: GnuPG v2\nComment: some words here\n\n", 1),
		"encrypted":   strings.Replace(key, "-----\n", "-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123456789ABCDEF\n\n", 1),
		"ssh2":        "---- BEGIN SSH2 ENCRYPTED " + "PRIVATE KEY ----\nComment: \"x\"\n" + strings.Join(lines[1:], "\n"),
		"crlf":        strings.ReplaceAll(key, "\n", "\r\n"),
		"json":        string(js),
		"json twice":  strings.ReplaceAll(string(js), `\n`, `\\n`),
		"env":         "KEY=\"" + strings.ReplaceAll(key, "\n", `\n`) + "\"",
		"yaml":        "key: |\n    " + strings.Join(lines, "\n    "),
		"go":          "\"" + strings.Join(lines, "\\n\" +\n\t\"") + "\"",
		"c":           "\"" + strings.Join(lines, "\\n\"\n\"") + "\"",
		"comment":     "# " + strings.Join(lines, "\n# "),
		"one line":    strings.Join(lines, " "),
		"narrow":      lines[0] + "\n" + lines[1][:30] + "\n" + lines[1][30:60] + "\n" + lines[2][:30] + "\n" + lines[2][30:],
		"after bytes": strings.Repeat("\xff\x00", 5000) + key,
	} {
		if f := Scan("", []byte(text)); len(f) != 1 || f[0].What != "private key" {
			t.Errorf("%s: %v in %q", name, f, text)
		}
	}
}

// However content is cut into pieces, the findings are the same.
func TestScannerPiecesMakeNoDifference(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	var text []byte
	var want []string
	for i := range shapes() {
		s := &shapes()[i]
		if strings.HasPrefix(s.anchors[0], "\x02") || s.named || s.not&files != 0 {
			continue
		}
		text = append(text, fmt.Sprintf("some words %d\n", i)...)
		text = append(text, sampleOf(rnd, s, s.anchors[0])...)
		text = append(text, " and more\n"...)
		want = append(want, s.what)
	}
	all := scanShapes(text, 0, 0, len(text), false, 1000, nil)
	if len(all) != len(want) {
		t.Fatalf("%d findings, want %d", len(all), len(want))
	}
	s := NewScanner(1000)
	pieces := func(text []byte, cuts ...int) []Finding {
		s.Reset("")
		from := 0
		for _, c := range append(cuts, len(text)) {
			s.Write(text[from:c])
			from = c
		}
		return s.Findings()
	}
	for i := range text {
		if got := pieces(text, i); !slices.Equal(got, all) {
			t.Fatalf("cut at %d: %v", i, got)
		}
	}
	// Around the places where the buffer moves on, at every offset.
	for shift := range len(text) + 100 {
		long := append(bytes.Repeat([]byte("."), scanBuffer-scanAhead-len(text)+shift-50), text...)
		long = append(long, bytes.Repeat([]byte("-"), scanBuffer)...)
		want := scanShapes(long, 0, 0, len(long), false, 1000, nil)
		if len(want) != len(all) {
			t.Fatalf("shift %d: %d findings in one piece", shift, len(want))
		}
		if got := pieces(long); !slices.Equal(got, want) {
			t.Fatalf("shift %d: %v, want %v", shift, got, want)
		}
		if got := pieces(long, 1, 2, 3, 5000, 5001, 70000, 70000, 100000); !slices.Equal(got, want) {
			t.Fatalf("shift %d, pieces: %v, want %v", shift, got, want)
		}
	}
	// One byte at a time.
	s.Reset("")
	for i := range text {
		s.Write(text[i : i+1])
	}
	if got := s.Findings(); !slices.Equal(got, all) {
		t.Fatalf("byte by byte: %v", got)
	}
	// Enough is enough, and Reset forgets.
	s = NewScanner(3)
	s.Write(text)
	if got := s.Findings(); !slices.Equal(got, all[:3]) {
		t.Fatalf("limit 3: %v", got)
	}
	s.Reset("")
	s.Write([]byte("nothing"))
	if got := s.Findings(); len(got) > 0 {
		t.Fatalf("after Reset: %v", got)
	}
}

func FuzzScanner(f *testing.F) {
	rnd := rand.New(rand.NewPCG(7, 8))
	for i := range shapes() {
		s := &shapes()[i]
		f.Add([]byte("x "+sampleOf(rnd, s, s.anchors[0])+" y"), uint16(9))
	}
	s := NewScanner(maxFindings)
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		want := Scan("", b)
		for _, c := range want {
			if c.At < 0 || c.At >= int64(len(b)) {
				t.Fatalf("finding outside the content: %v", c)
			}
		}
		s.Reset("")
		n := min(int(cut), len(b))
		s.Write(b[:n])
		s.Write(b[n:])
		if got := s.Findings(); !slices.Equal(got, want) {
			t.Fatalf("in two pieces %v, in one %v", got, want)
		}
	})
}

// BenchmarkScanner measures pieces of 128 KiB, as a copy feeds them. It must
// stay above 1 GB/s for what trees are made of.
func BenchmarkScanner(b *testing.B) {
	rnd := rand.New(rand.NewPCG(9, 10))
	bin := make([]byte, 8<<20)
	for i := range bin {
		bin[i] = byte(rnd.Uint32())
	}
	var source, b64 bytes.Buffer
	for source.Len() < 8<<20 {
		for _, root := range []string{".", "../cell"} {
			files, _ := filepath.Glob(filepath.Join(root, "*.go"))
			for _, f := range files {
				c, _ := os.ReadFile(f)
				source.Write(c)
			}
		}
	}
	e := base64.NewEncoder(base64.StdEncoding, &b64)
	e.Write(bin)
	for _, c := range []struct {
		name    string
		content []byte
	}{{"source", source.Bytes()}, {"binary", bin}, {"base64", b64.Bytes()}, {"zeros", make([]byte, 8<<20)}} {
		b.Run(c.name, func(b *testing.B) {
			s := NewScanner(maxFindings)
			b.SetBytes(int64(len(c.content)))
			for b.Loop() {
				s.Reset("")
				for p := c.content; len(p) > 0; {
					n := min(128<<10, len(p))
					s.Write(p[:n])
					p = p[n:]
				}
				if f := s.Findings(); len(f) > 0 {
					b.Fatal(f)
				}
			}
		})
	}
}
