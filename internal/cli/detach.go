package cli

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// errDetached ends a stream that the user leaves while its command goes on.
var errDetached = errors.New("detached")

// defaultDetachKeys are Docker's.
const defaultDetachKeys = "ctrl-p,ctrl-q"

// detachKeys are the keys that leave a command, one after the other. Each has the forms in
// which terminals send it. None leaves never.
type detachKeys [][][]byte

func detachFlag(c *cobra.Command, keys *string) {
	c.Flags().StringVar(keys, "detach-keys", defaultDetachKeys, "keys that leave the terminal while its program goes on: characters or ctrl-X, with commas between them; none")
}

// parseKeys reads keys as Docker does: "ctrl-p,ctrl-q", "a,b".
func parseKeys(text string) (detachKeys, error) {
	if text == "none" {
		return nil, nil
	}
	var keys detachKeys
	for _, name := range strings.Split(text, ",") {
		key := name
		if c, ctrl := strings.CutPrefix(strings.ToLower(name), "ctrl-"); ctrl && len(c) == 1 && (c[0] >= 'a' && c[0] <= 'z' || strings.Contains(`@[\]^_`, c)) {
			// As itself, in kitty's keyboard protocol, and with xterm's modifyOtherKeys.
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

// A detacher looks for the detach keys in what is typed.
type detacher struct {
	keys detachKeys
	had  int    // of the keys came
	held []byte // as they came
}

// typed returns what of b goes to the command, and whether the user leaves. Keys that may be the
// beginning are held back until it is known that they are not.
func (d *detacher) typed(b []byte) (pass []byte, leaves bool) {
	if len(d.keys) == 0 {
		return b, false
	}
	for len(b) > 0 {
		form := d.form(b)
		switch {
		case form == nil && d.had > 0: // it was none: look again without what was held
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

// form is the form in which the key that is next begins b.
func (d *detacher) form(b []byte) []byte {
	for _, form := range d.keys[d.had] {
		if bytes.HasPrefix(b, form) {
			return form
		}
	}
	return nil
}
