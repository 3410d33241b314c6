package credential

import (
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"

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

// Placeholder returns what a cell gets instead of a value: text of the same
// shape, chosen at random, which no server knows. Each is made for one cell and
// one credential. It is long enough (140 bits) that no other text is equal to it
// by chance, also where the value is shorter.
func Placeholder(shape string) string {
	const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	prefix, rest, _ := strings.Cut(shape, "{")
	n, _ := strconv.Atoi(strings.TrimSuffix(rest, "}"))
	b := make([]byte, min(max(n-len(placeholderMark), 24), 512))
	rand.Read(b)
	for i, x := range b {
		for x >= 248 { // 4 × 62: so that every letter is as likely as another
			var again [1]byte
			rand.Read(again[:])
			x = again[0]
		}
		b[i] = alphabet[x%62]
	}
	return prefix + placeholderMark + string(b)
}
