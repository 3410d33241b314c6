package credential

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/secret"
)

// ShapeOf describes how a value looks without telling it: the prefix that its
// kind has, and its length.
func ShapeOf(value Secret) string {
	v := value.Reveal()
	p := secret.Prefix(v)
	return fmt.Sprintf("%s{%d}", p, len(v)-len(p))
}

// placeholderMark identifies a placeholder in a log; its letters are in every alphabet that
// tokens are made of.
const placeholderMark = "pando"

// Placeholder returns what a cell gets instead of the value: text of the same shape, chosen at
// random, which no server knows. Each is made for one cell and one credential.
func (c Credential) Placeholder() string {
	if c.Claims != nil {
		return unsigned(c.Claims)
	}
	return placeholder(c.Shape)
}

// placeholder returns text of a shape. It is long enough (140 bits) that no other text is equal to it
// by chance, also where the value is shorter.
func placeholder(shape string) string {
	prefix, rest, _ := strings.Cut(shape, "{")
	n, _ := strconv.Atoi(strings.TrimSuffix(rest, "}"))
	return prefix + placeholderMark + random(min(max(n-len(placeholderMark), 24), 512))
}

// random returns n letters and digits.
func random(n int) string {
	const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	b := make([]byte, n)
	rand.Read(b)
	for i, x := range b {
		for x >= 248 { // 4 × 62: so that every letter is as likely as another
			var again [1]byte
			rand.Read(again[:])
			x = again[0]
		}
		b[i] = alphabet[x%62]
	}
	return string(b)
}

// Claims returns the claims of a JSON Web Token (RFC 7519), of which nothing is verified.
func Claims(token string) (map[string]any, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, errors.New("it is no JSON Web Token")
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil, errors.New("it is no JSON Web Token")
	}
	var claims map[string]any
	if err := json.Unmarshal(b, &claims); err != nil || claims == nil {
		return nil, errors.New("it is no JSON Web Token")
	}
	return claims, nil
}

// lasting is when placeholders with claims expire. The value that is put in expires before, and the
// gateway says so; a program that took its placeholder for expired would try to refresh it.
var lasting = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)

// unsigned returns a JSON Web Token with these claims, as programs read them, and a signature that is
// none.
//
// Its text shares no long piece with that of a token with the same claims: such a piece in what a
// cell wrote is taken for the value. So of each string the first and then each eighth character is
// written as an escape of JSON.
func unsigned(claims map[string]any) string {
	all := maps.Clone(claims)
	all["exp"] = lasting.Unix()
	var b strings.Builder
	writeEscaped(&b, all)
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"typ":"JWT","alg":"none"}`)) + "." + encode([]byte(b.String())) + "." + placeholderMark + random(43)
}

func writeEscaped(b *strings.Builder, v any) {
	switch v := v.(type) {
	case string:
		b.WriteByte('"')
		n := 0
		for _, r := range v {
			switch {
			case r > 0xffff:
				quoted, _ := json.Marshal(string(r))
				b.Write(quoted[1 : len(quoted)-1])
			case n%8 == 0 || r < ' ' || r == '"' || r == '\\':
				fmt.Fprintf(b, `\u%04x`, r)
			default:
				b.WriteRune(r)
			}
			n++
		}
		b.WriteByte('"')
	case map[string]any:
		b.WriteByte('{')
		for i, name := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				b.WriteByte(',')
			}
			writeEscaped(b, name)
			b.WriteByte(':')
			writeEscaped(b, v[name])
		}
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for i, x := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			writeEscaped(b, x)
		}
		b.WriteByte(']')
	default:
		plain, _ := json.Marshal(v)
		b.Write(plain)
	}
}
