package secret

import (
	"bytes"
	"strings"
)

// findPEM: "-----BEGIN … PRIVATE KEY-----" or "PRIVATE KEY BLOCK", and real
// base64 after it. Code that only names the header, and examples cut short with
// dots, are no keys. Encrypted keys count: their password may be weak.
func findPEM(b []byte, at, end int) (from, to int, ok bool) {
	kind := trailing(b[:at], newByteSet("A-Z0-9 "))
	start := at - len(kind) - len("-----")
	rest := b[end:]
	rest = bytes.TrimPrefix(rest, []byte(" BLOCK"))
	if start < 0 || !bytes.HasPrefix(kind, []byte("BEGIN ")) || string(b[start:start+5]) != "-----" {
		// RFC 4716 and PuTTY's exports: "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----"
		if start = bytes.LastIndex(b[:at], []byte("---- BEGIN ")); start < 0 || at-start > 40 || !bytes.HasPrefix(rest, []byte(" ----")) {
			return 0, 0, false
		}
		rest = rest[1:]
	}
	if rest = bytes.TrimLeft(rest, "-"); len(rest) == 0 {
		return 0, 0, false
	}
	return start, len(b), hasKeyBody(rest)
}

// findPuTTY: "Private-Lines: 8" and base64.
func findPuTTY(b []byte, at, end int) (from, to int, ok bool) {
	count := leading(b[end:], newByteSet("0-9"))
	return at, len(b), wordStart(b, at) && len(count) > 0 && hasKeyBody(b[end+len(count):])
}

// hasKeyBody reports whether one of the first lines of b is of base64 and looks
// random. Lines end as in a file, or as in a string of a program; a line with a
// colon is a header.
func hasKeyBody(b []byte) bool {
	body := 0
	for range 12 {
		// What may stand between two lines: "\n" written out, quotes, signs of
		// concatenation, indentation, comments.
		for len(b) > 0 {
			if b[0] == '\\' && len(b) > 1 && strings.IndexByte("nrt", b[1]) >= 0 {
				b = b[2:]
			} else if strings.IndexByte(" \t\r\n\"'`,+\\#*;>|", b[0]) >= 0 && (b[0] != '+' || len(leading(b, base64Std)) < 16) {
				b = b[1:]
			} else {
				break
			}
		}
		line := leading(b, base64Std)
		rest := b[len(line):]
		if len(line) >= 40 && looksRandom(line[:40]) {
			return true
		}
		if len(line) >= 16 && looksRandom(line[:16]) { // wrapped narrowly
			if body += len(line); body >= 64 {
				return true
			}
		} else if end := headerEnd(rest); end < 0 {
			return false
		} else {
			rest = rest[end:]
		}
		b = rest
	}
	return false
}

// headerEnd returns where the line of a header like "Proc-Type: 4,ENCRYPTED"
// ends, of which the first word is read, -1 if it is none.
func headerEnd(rest []byte) int {
	word := leading(rest, base64URL)
	if !bytes.HasPrefix(rest[len(word):], []byte(": ")) {
		return -1
	}
	end := len(rest)
	for _, stop := range []string{"\n", `\n`, `\r`} {
		if i := bytes.Index(rest[:end], []byte(stop)); i >= 0 {
			end = i
		}
	}
	return end
}

// findDER: a file that begins like a private key in DER: PKCS #8 or PKCS #1
// (version 0), or SEC 1 (version 1 and an octet string).
func findDER(b []byte, at, end int) (from, to int, ok bool) {
	if at < 2 || b[0] != 0x30 || len(b) < end+16 {
		return 0, 0, false
	}
	switch b[1] { // the length of the sequence, in one, two or three bytes
	case 0x81:
		ok = at == 3
	case 0x82:
		ok = at == 4
	default:
		ok = at == 2 && b[1] < 0x80
	}
	return 0, len(b), ok
}

// findAge: Bech32 with its checksum (BIP 173).
func findAge(b []byte, at, end int) (from, to int, ok bool) {
	data := leading(b[end:], upperNum)
	return at, end + len(data), wordStart(b, at) && len(data) == 58 && looksRandom(data) && bech32OK(strings.ToLower(string(b[at:end-1])), strings.ToLower(string(data)))
}

func bech32OK(prefix, data string) bool {
	sum := uint32(1)
	step := func(v uint32) {
		top := sum >> 25
		sum = sum&0x1ffffff<<5 ^ v
		for i, g := range [5]uint32{0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd, 0x2a1462b3} {
			if top>>i&1 != 0 {
				sum ^= g
			}
		}
	}
	for _, c := range []byte(prefix) {
		step(uint32(c >> 5))
	}
	step(0)
	for _, c := range []byte(prefix) {
		step(uint32(c & 31))
	}
	for _, c := range []byte(data) {
		v := strings.IndexByte("qpzry9x8gf2tvdw0s3jn54khce6mua7l", c)
		if v < 0 {
			return false
		}
		step(uint32(v))
	}
	return sum == 1
}
