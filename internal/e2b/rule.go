package e2b

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
)

// network.rules adds headers to requests of a sandbox. Each is a credential of pando, lent to
// the sandbox by its policy: the value is stored encrypted, is in no record and no answer, and
// the sandbox never sees it. Equal rules of several sandboxes, of any callers, share one
// credential, which is deleted with the last sandbox.

// ruleCredential is the prefix of the names of such credentials.
const ruleCredential = "e2b-rule-"

// ruleComment is their comment in `pando credential ls`.
const ruleComment = "network.rules of E2B sandboxes"

// masked replaces a header's value in answers.
const masked = "***"

// transform is one rule for a host.
type transform struct {
	Transform *struct {
		Headers map[string]string `json:"headers,omitempty"`
	} `json:"transform,omitempty"`
}

// rules parses network.rules: headers by host. It rejects unsupported rules.
func (n *network) rules() (map[string]map[string]string, error) {
	if n == nil || !isSet(n.Rules) {
		return nil, nil
	}
	cannot := func(hint, what string, args ...any) error {
		return cell.Errorf(cell.Unsupported, "e2b.network", hint, "cannot use network.rules: "+what, args...)
	}
	var in map[string][]transform
	d := json.NewDecoder(bytes.NewReader(n.Rules))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return nil, cannot(`write {"HOST": [{"transform": {"headers": {"NAME": "VALUE"}}}]}`, "%w", err)
	}
	if err := bound.Unique(n.Rules, "network.rules", reflect.TypeOf(in)); err != nil {
		return nil, err
	}
	out := map[string]map[string]string{}
	for _, host := range slices.Sorted(maps.Keys(in)) {
		headers := map[string]string{}
		for _, t := range in[host] {
			if t.Transform == nil {
				continue
			}
			for name, value := range t.Transform.Headers {
				if strings.Contains(value, "${e2b.") {
					return nil, cannot("write the value itself into the header", "the header %s for %s names a secret or identity that E2B keeps", cell.Clip(name), cell.Clip(host))
				}
				headers[name] = value
			}
		}
		switch {
		case len(headers) == 0:
			continue
		case len(headers) > 1:
			return nil, cannot("keep the header with the secret; the program in the sandbox can send the others", "there are %d headers for %s, and a host has one", len(headers), cell.Clip(host))
		}
		host = strings.ToLower(host)
		for other := range out {
			if covers(host, other) || covers(other, host) {
				return nil, cannot("name hosts that do not overlap", "the hosts %s and %s overlap", cell.Clip(other), cell.Clip(host))
			}
		}
		out[host] = headers
	}
	return out, nil
}

// covers reports whether a host, or the hosts below a domain, overlap with others.
func covers(outer, inner string) bool {
	below, wild := strings.CutPrefix(outer, "*")
	return outer == inner || wild && strings.HasSuffix(inner, below)
}

// mask returns network.rules without values; nil for none.
func (n *network) mask() json.RawMessage {
	hosts, err := n.rules()
	if err != nil || len(hosts) == 0 {
		return nil
	}
	out := map[string][]any{}
	for host, headers := range hosts {
		names := map[string]string{}
		for name := range headers {
			names[name] = masked
		}
		out[host] = []any{map[string]any{"transform": map[string]any{"headers": names}}}
	}
	b, _ := json.Marshal(out)
	return b
}

// lendTo stores the credentials of a sandbox's rules, and returns their names. None of them is
// deleted before done is called, when the sandbox has them.
func (f *Front) lendTo(ctx context.Context, n *network) (names []string, done func(), err error) {
	hosts, err := n.rules()
	if len(hosts) == 0 {
		return nil, func() {}, err
	}
	f.lending.Lock()
	if names, err = f.lend(ctx, hosts); err != nil {
		f.lending.Unlock()
		return nil, nil, err
	}
	return names, func() {
		f.lending.Unlock()
		f.unlend(context.WithoutCancel(ctx))
	}, nil
}

func (f *Front) lend(ctx context.Context, hosts map[string]map[string]string) (names []string, err error) {
	var have []string
	for _, c := range f.all.Credentials() {
		have = append(have, c.Name)
	}
	for _, host := range slices.Sorted(maps.Keys(hosts)) {
		for header, value := range hosts[host] {
			m := hmac.New(sha256.New, f.cfg.Key)
			m.Write([]byte("rule\x00" + host + "\x00" + header + "\x00" + value))
			name := ruleCredential + hex.EncodeToString(m.Sum(nil)[:8])
			names = append(names, name)
			if slices.Contains(have, name) {
				continue
			}
			as, secret := header+": {secret}", value
			if scheme, rest, ok := strings.Cut(value, " "); ok && strings.Trim(strings.ToLower(scheme), "abcdefghijklmnopqrstuvwxyz0123456789-") == "" {
				as, secret = header+": "+scheme+" {secret}", rest // "Bearer" is no header
			}
			if _, err := f.all.AddCredential(ctx, api.CredentialRequest{Name: name, Kind: "token", Secret: secret, For: []string{"https://" + host + "/**"},
				As: as, Comment: ruleComment}); err != nil {
				return nil, cell.Errorf(cell.KindOf(err), "e2b.network", cell.HintOf(err), "cannot use network.rules for %s: %w", cell.Clip(host), err)
			}
		}
	}
	return names, nil
}

// unlend deletes the credentials of rules of removed sandboxes.
func (f *Front) unlend(ctx context.Context) {
	f.lending.Lock()
	defer f.lending.Unlock()
	for _, c := range f.all.Credentials() {
		if strings.HasPrefix(c.Name, ruleCredential) && c.Comment == ruleComment && len(c.Lent) == 0 {
			if _, err := f.all.RemoveCredential(ctx, c.Name); err != nil {
				f.cfg.Log.Warn("cannot forget the credential of a rule", "credential", c.Name, "error", err)
			}
		}
	}
}
