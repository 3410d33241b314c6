package evidence

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/receipt"
)

// ChangeKey has another key sign receipts from now on, or revokes one.
func (m *Manager) ChangeKey(ctx context.Context, req api.KeyChangeRequest) (api.Ledger, error) {
	change := receipt.KeyRequest{Since: -1, Reason: req.Reason}
	bad := func(hint, format string, args ...any) (api.Ledger, error) {
		return api.Ledger{}, cell.Errorf(cell.Invalid, "evidence.ChangeKey", hint, "cannot change the key: "+format, args...)
	}
	if len(req.Reason) > maxReason {
		return bad("", "the reason is longer than %d bytes", maxReason)
	}
	if req.Since != nil && (req.Revoke == "" || *req.Since < 0) {
		return bad("", "only a key that is revoked has a first receipt that it does not count for")
	}
	if req.Revoke != "" {
		key, err := m.keyOf(req.Revoke)
		if err != nil {
			return api.Ledger{}, err
		}
		change.Revoke = key
		if req.Since != nil {
			change.Since = *req.Since
		}
	}
	if _, err := m.cfg.Ledger.Rotate(ctx, change); err != nil {
		return api.Ledger{}, err
	}
	return m.LedgerHead(0)
}

// maxReason bounds the text in a receipt of a change of keys, in bytes.
const maxReason = 1000

// keyOf is the id of the one key of the ledger that begins like that.
func (m *Manager) keyOf(sel string) (string, error) {
	digits, found := strings.TrimPrefix(sel, "sha256:"), ""
	for _, k := range m.cfg.Ledger.Keys().List() {
		if len(digits) >= 4 && strings.HasPrefix(strings.TrimPrefix(k.Key.ID(), "sha256:"), digits) {
			if found != "" {
				return "", cell.Errorf(cell.Invalid, "evidence.ChangeKey", "give more of its digits", "cannot tell which key %s is: several begin like that", cell.Clip(sel))
			}
			found = k.Key.ID()
		}
	}
	if found == "" {
		return "", cell.Errorf(cell.NotFound, "evidence.ChangeKey", "see pando receipt key ls", "the ledger has no key %s", cell.Clip(sel))
	}
	return found, nil
}

// keyChange is what the receipt of a change of keys says.
type keyChange receipt.KeyChange

func (p *keyChange) show(v *api.Receipt) { v.At, v.Summary = p.At, p.summary() }

func (p *keyChange) parents() []string { return nil }

func (p *keyChange) summary() string {
	var parts []string
	if p.Revoked != nil {
		parts = append(parts, fmt.Sprintf("key %s revoked since receipt %d", short(p.Revoked.Key), p.Revoked.Since))
	}
	if p.Next != nil {
		if key, err := receipt.ParseKeyText(p.Next.Key); err == nil {
			parts = append(parts, "key "+short(key.ID())+" signs from here on")
		}
	}
	return strings.Join(parts, ", ")
}

func (p *keyChange) markdown(b *strings.Builder, _ []api.Receipt) {
	b.WriteString("# Keys of the ledger\n\n| | |\n|---|---|\n")
	row(b, "what", p.summary())
	row(b, "reason", p.Reason)
	row(b, "at", p.At.UTC().Format(time.RFC3339))
	row(b, "signed by", p.By)
	if p.Next != nil {
		row(b, "next key", p.Next.Key)
	}
	if p.Revoked != nil {
		row(b, "revoked", fmt.Sprintf("%s, from receipt %d on", p.Revoked.Key, p.Revoked.Since))
	}
}
