package credential

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pando-dev/pando/internal/cell"
)

// The kinds of credentials.
const (
	Token = "token" // a value that goes into HTTP requests
	SSH   = "ssh"   // a key of the caller's SSH agent; there is no value
)

// Credential is the public part of a credential, for callers that may know it exists. The
// value is not part of it.
type Credential struct {
	Name    string         `json:"name"`
	Kind    string         `json:"kind"`
	For     []string       `json:"for"`              // places, as cell.ParsePlace reads them; for SSH hosts, and GitSignatures
	As      string         `json:"as,omitempty"`     // "Authorization: Bearer {secret}"
	Also    []Use          `json:"also,omitempty"`   // places where it goes in another way
	Env     []string       `json:"env,omitempty"`    // variables that hold the placeholder in the cell
	Key     string         `json:"key,omitempty"`    // SSH: fingerprint, "SHA256:…"
	Public  string         `json:"public,omitempty"` // SSH: the public key, "ssh-ed25519 AAAA…"; "" where it was not given
	Shape   string         `json:"shape,omitempty"`
	Comment string         `json:"comment,omitempty"`
	Created time.Time      `json:"created"`
	Login   *Login         `json:"login,omitempty"` // the value is in this file, and not stored
	Expires time.Time      `json:"-"`               // of a login file: when its token expires; zero: not known
	Claims  map[string]any `json:"-"`               // of the value, where programs read them; nil: they don't
}

// GitSignatures is what a key of SSH is for that signs commits and tags of git.
const GitSignatures = "git-signatures"

// Hosts are the places that a key of SSH logs in to.
func (c Credential) Hosts() []string {
	return slices.DeleteFunc(slices.Clone(c.For), func(f string) bool { return f == GitSignatures })
}

// SignsGit reports whether a key of SSH is for signatures of git.
func (c Credential) SignsGit() bool { return c.Kind == SSH && slices.Contains(c.For, GitSignatures) }

// setKey reads the key of SSH that was given: its fingerprint, or itself, as in a file NAME.pub.
func (c *Credential) setKey() error {
	if strings.HasPrefix(c.Key, "SHA256:") {
		return nil
	}
	const hint = "give the public key (ssh-ed25519 AAAA…, as in ~/.ssh/id_ed25519.pub), or the fingerprint that `ssh-add -l` shows: SHA256:…"
	f := strings.Fields(c.Key)
	if len(f) < 2 || strings.Trim(f[0], "abcdefghijklmnopqrstuvwxyz0123456789-@.") != "" || len(c.Key) > 16<<10 || strings.Contains(strings.TrimSpace(c.Key), "\n") {
		return invalid(hint, "%.80q is no key", c.Key)
	}
	blob, err := base64.StdEncoding.DecodeString(f[1])
	if err != nil || len(blob) < 4 || int(binary.BigEndian.Uint32(blob)) != len(f[0]) || !strings.HasPrefix(string(blob[4:]), f[0]) { // RFC 4253, section 6.6
		return invalid(hint, "%.80q is no key", c.Key)
	}
	sum := sha256.Sum256(blob)
	c.Key, c.Public = "SHA256:"+base64.RawStdEncoding.EncodeToString(sum[:]), f[0]+" "+f[1]
	return nil
}

// Expired reports whether the token of a login file has expired.
func (c Credential) Expired(now time.Time) bool { return !c.Expires.IsZero() && !now.Before(c.Expires) }

// Use says that a credential goes to some places in its own way.
type Use struct {
	For []string `json:"for"`
	As  string   `json:"as"`
}

// Uses returns all ways in which the credential is put in.
func (c Credential) Uses() []Use {
	return append([]Use{{c.For, c.As}}, c.Also...)
}

// Lend returns what the gateway of a cell is told.
func (c Credential) Lend(placeholder string, secret Secret) (list []cell.Lent) {
	if c.Kind != Token {
		return nil
	}
	for _, u := range c.Uses() {
		l := cell.Lent{Handle: c.Name, Placeholder: placeholder, Secret: secret.Reveal(), For: u.For, As: u.As, Expires: c.Expires}
		if c.Login != nil {
			l.Renew, l.Login = Renew(c.Login.Program), c.Login.id()
		}
		list = append(list, l)
	}
	return list
}

// check accepts what can be stored.
func (c Credential) check() error {
	if err := CheckName(c.Name); err != nil {
		return err
	}
	if !utf8.ValidString(c.Comment) || len(c.Comment) > 200 || strings.ContainsFunc(c.Comment, control) {
		return invalid("write a shorter comment, on one line", "cannot keep this comment")
	}
	for _, v := range c.Env {
		if !nameOfVariable(v) {
			return invalid("use letters, digits and _", "cannot set a variable named %q", v)
		}
	}
	switch c.Kind {
	case Token:
		for _, u := range c.Uses() {
			if err := u.check(c.Name); err != nil {
				return err
			}
		}
	case SSH:
		return c.checkSSH()
	default:
		return invalid("use token or ssh", "cannot keep a credential of the kind %q", c.Kind)
	}
	return nil
}

func (u Use) check(name string) error {
	if len(u.For) == 0 {
		return invalid("say where it may go: --for 'https://api.example.com/**'", "cannot store %s: it is for no place", name)
	}
	for _, f := range u.For {
		if _, err := cell.ParsePlace(f); err != nil {
			return err
		}
	}
	return checkAs(u.As)
}

// checkAs accepts one header with the secret in it once.
func checkAs(as string) error {
	const hint = "write it like --as 'Authorization: Bearer {secret}'"
	name, value, ok := strings.Cut(as, ":")
	if !ok || name == "" || strings.Trim(strings.ToLower(name), "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
		return invalid(hint, "%q is no header", as)
	}
	if slices.Contains([]string{"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"}, strings.ToLower(name)) {
		return invalid(hint, "cannot put a secret into the header %s", name)
	}
	if strings.ContainsFunc(value, control) || strings.Count(value, "{secret}")+strings.Count(value, "{basic:") != 1 {
		return invalid(hint, "%q does not have {secret} in it, once", as)
	}
	if _, after, ok := strings.Cut(value, "{basic:"); ok {
		if user, _, ok := strings.Cut(after, "}"); !ok || user == "" || strings.ContainsAny(user, ": {") {
			return invalid("write it like --as 'Authorization: Basic {basic:USER}'", "%q names no user", as)
		}
	}
	return nil
}

func (c Credential) checkSSH() error {
	if !strings.HasPrefix(c.Key, "SHA256:") || len(c.Key) != len("SHA256:")+43 {
		return invalid("give the fingerprint that `ssh-add -l` shows: SHA256:…", "%q is no fingerprint of a key", c.Key)
	}
	if len(c.For) == 0 {
		return invalid("say for which host: --for github.com, or for commits: --for "+GitSignatures, "cannot store %s: it is for nothing", c.Name)
	}
	if c.SignsGit() && c.Public == "" {
		return invalid("give the public key, which git names: --ssh ~/.ssh/id_ed25519.pub, or a line of ssh-add -L", "cannot store %s: a fingerprint is not enough for signatures of git", c.Name)
	}
	for _, h := range c.Hosts() {
		if _, err := ParseHost(h); err != nil {
			return err
		}
	}
	return nil
}

// ParseHost reads a host that an SSH key is for: NAME or NAME:PORT.
func ParseHost(s string) (cell.Place, error) {
	p, err := cell.ParsePlace(s)
	if err != nil || strings.ContainsAny(s, "/ *") {
		return p, invalid("write it like github.com, or git.example.com:2222", "%q is no host for a key of SSH", s)
	}
	if p.Port == 443 && !strings.HasSuffix(s, ":443") {
		p.Port = 22
	}
	return p, nil
}

// CheckName accepts names of credentials: those of cells will do.
func CheckName(name string) error {
	if err := cell.CheckName(name); err != nil {
		return invalid(cell.HintOf(err), "cannot name a credential %q", name)
	}
	return nil
}

// checkValue accepts what can go into a header and be looked for.
func checkValue(v string) error {
	switch {
	case len(v) < minValue:
		return invalid("give the whole secret", "cannot keep a secret of %d characters: it could not be told from other text", len(v))
	case len(v) > maxValue:
		return invalid("a credential is a token, not a file", "cannot keep a secret of %d bytes", len(v))
	case strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return invalid("give the value alone, without quotes, spaces or a line around it", "cannot keep a secret with spaces, line ends or characters beyond ASCII in it")
	}
	return nil
}

// The lengths of a value, in bytes.
const (
	minValue = 8
	maxValue = 16 << 10
)

func nameOfVariable(v string) bool {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"
	return v != "" && strings.Contains(letters, v[:1]) && strings.Trim(v, letters+"0123456789") == ""
}

func control(r rune) bool { return r < ' ' || r == 0x7f }

func invalid(hint, format string, args ...any) error {
	return cell.Errorf(cell.Invalid, "credential", hint, "%w", fmt.Errorf(format, args...))
}
