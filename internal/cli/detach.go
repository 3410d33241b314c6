package cli

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// errDetached ends a stream when the user detaches and the command continues.
var errDetached = errors.New("detached")

// defaultDetachKeys are those of Docker.
const defaultDetachKeys = "ctrl-p,ctrl-q"

// detachKeys is the sequence of keys that detaches. Each key has all forms in which terminals
// send it. An empty sequence never detaches.
type detachKeys [][][]byte

func detachFlag(c *cobra.Command, keys *string) {
	c.Flags().StringVar(keys, "detach-keys", defaultDetachKeys, "keys that detach from the terminal while its program continues: characters or ctrl-X, separated by commas; none")
}

// parseKeys parses keys in Docker's syntax: "ctrl-p,ctrl-q", "a,b".
func parseKeys(text string) (detachKeys, error) {
	if text == "none" {
		return nil, nil
	}
	var keys detachKeys
	for _, name := range strings.Split(text, ",") {
		key := name
		if c, ctrl := strings.CutPrefix(strings.ToLower(name), "ctrl-"); ctrl && len(c) == 1 && (c[0] >= 'a' && c[0] <= 'z' || strings.Contains(`@[\]^_`, c)) {
			// The plain byte, the form of kitty's keyboard protocol, and that of xterm's
			// modifyOtherKeys.
			code := strings.ToUpper(c)[0] & 0x1f
			keys = append(keys, [][]byte{{code}, fmt.Appendf(nil, "\x1b[%d;5u", c[0]), fmt.Appendf(nil, "\x1b[27;5;%d~", c[0])})
			continue
		}
		if len(key) != 1 || key[0] <= ' ' || key[0] > '~' {
			return nil, usage("--detach-keys %s: %q is no key; write characters or ctrl-X, such as ctrl-p,ctrl-q", text, name)
		}
		keys = append(keys, [][]byte{[]byte(key)})
	}
	return keys, nil
}

// A detacher finds the detach keys in the input.
type detacher struct {
	keys detachKeys
	had  int    // number of keys seen so far
	held []byte // their bytes
}

// typed returns the part of b that goes to the command, and whether the user detaches. It holds
// back an incomplete sequence until the next key decides.
func (d *detacher) typed(b []byte) (pass []byte, leaves bool) {
	if len(d.keys) == 0 {
		return b, false
	}
	for len(b) > 0 {
		form := d.form(b)
		switch {
		case form == nil && d.had > 0: // not the sequence: look again without the bytes held back
			pass, d.had, d.held = append(pass, d.held...), 0, nil
		case form == nil:
			pass, b = append(pass, b[0]), b[1:]
		default:
			d.had++
			d.held, b = append(d.held, form...), b[len(form):]
			if d.had == len(d.keys) {
				return pass, true
			}
		}
	}
	return pass, false
}

// form returns the form in which the next key begins b.
func (d *detacher) form(b []byte) []byte {
	for _, form := range d.keys[d.had] {
		if bytes.HasPrefix(b, form) {
			return form
		}
	}
	return nil
}
