package govern

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// Cells that do not answer delay a replaced or revoked credential by tellWithin for every tellAtOnce of
// them, and the others not at all. The error names them, and the same command tells them later.
func TestTellingCellsIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.login("sk-ant-oat01-1111111111111111")
		var hung []*governed
		for i := range tellAtOnce + 1 {
			_, g := b.governed(fmt.Sprintf("hung%d", i))
			g.does(func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }, nil)
			hung = append(hung, g)
		}
		_, good := b.governed("good")
		all := func(cell.ID) bool { return true }
		for what, f := range map[string]func() error{
			"AddCredential": func() error {
				_, err := b.AddCredential(b.ctx, api.CredentialRequest{Name: "mine", Secret: testToken, For: []string{"https://api.example.com/**"}, Env: []string{"TOKEN"}, Replace: true})
				return err
			},
			"Revoke": func() error {
				res, err := b.Revoke(b.ctx, "mine", api.RevokeRequest{All: true}, nil, all)
				if len(res.Cells) != len(hung)+1 {
					t.Errorf("revoked from %d cells", len(res.Cells))
				}
				return err
			},
		} {
			good.forget()
			began := time.Now()
			err := f()
			if took := time.Since(began); took != 2*tellWithin {
				t.Errorf("%s took %s", what, took)
			}
			if err == nil || cell.KindOf(err) != cell.Unavailable || strings.Count(err.Error(), "did not answer in 10s") != len(hung) || !strings.Contains(err.Error(), "cannot tell cell hung0 ") || strings.Contains(err.Error(), "good") {
				t.Errorf("%s: %v", what, err)
			}
			if n, _ := good.heard(); n != 1 {
				t.Errorf("%s: the cell that answers was told %d times", what, n)
			}
		}
		for _, g := range hung {
			g.does(nil, nil)
			g.forget()
		}
		res, err := b.Revoke(b.ctx, "mine", api.RevokeRequest{All: true}, nil, all)
		if err != nil || len(res.Cells) > 0 {
			t.Errorf("%+v, %v", res, err)
		}
		for _, g := range hung {
			if n, last := g.heard(); n != 1 || len(last.Credentials) > 0 {
				t.Errorf("told %d times, and lent %d", n, len(last.Credentials))
			}
		}
	})
}
