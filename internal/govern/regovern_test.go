package govern

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// governed is a living cell with a gateway.
type governed struct {
	backend.Instance
	mu            sync.Mutex                  // guards what follows
	before, after func(context.Context) error // around its taking what it was told; nil: at once
	told          int
	last          cell.Governance
}

func (g *governed) Govern(ctx context.Context, told cell.Governance) error {
	g.mu.Lock()
	g.told++
	before, after := g.before, g.after
	g.mu.Unlock()
	if before != nil {
		if err := before(ctx); err != nil {
			return err
		}
	}
	g.mu.Lock()
	g.last = told
	g.mu.Unlock()
	if after != nil {
		return after(ctx)
	}
	return nil
}

// does sets what is done around the taking.
func (g *governed) does(before, after func(context.Context) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.before, g.after = before, after
}

// heard returns how often it was told since the last forget, and what it goes by.
func (g *governed) heard() (int, cell.Governance) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.told, g.last
}

func (g *governed) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.told = 0
}

// Policies of cells that talk, one with a credential.
const (
	barePolicy = "version: 1\nnetwork: {allow: [api.example.com]}\n"
	lentPolicy = barePolicy + "credentials: [mine]\n"
)

// governed makes a living cell with a gateway that was lent a credential.
func (b *bed) governed(name string) (*state.Cell, *governed) {
	b.Helper()
	c := b.cell(name, nil)
	c.Setup.Talks = true
	b.must(os.Mkdir(b.folder(c.ID), 0o700))
	recorded, err := b.change(c, nil, lentPolicy)
	b.must(err)
	b.must(b.reg.Commit(c))
	recorded()
	g := &governed{}
	b.alive[c.ID] = g
	b.must(b.Refresh(b.ctx, c.ID))
	b.lends(g, 1, true)
	g.forget()
	return c, g
}

// change gives a cell another policy, without a commit.
func (b *bed) change(c *state.Cell, inst backend.Instance, text string) (recorded func(), err error) {
	b.Helper()
	eff, err := b.Effective(api.RunRequest{Policy: text, PolicyName: "policy"}, "", nil)
	b.must(err)
	c.Setup.Hidden, c.Setup.ReadOnly, c.Setup.Programs = eff.Files.Hidden, eff.Files.ReadOnly, eff.Processes.Deny
	return b.Change(b.ctx, c, inst, &eff.Result, state.Kept{}, "")
}

// lends asserts how often a gateway was told, and whether it goes by a credential now.
func (b *bed) lends(g *governed, told int, want bool) {
	b.Helper()
	if n, last := g.heard(); n != told || len(last.Credentials) > 0 != want {
		b.Errorf("it was told %d times and has %d credentials, want %d times, a credential: %t", n, len(last.Credentials), told, want)
	}
}

// What takes a credential away is not undone by a Refresh that looked at the records before, or
// that comes before the change is recorded.
func TestRefreshUndoesNothing(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*bed, *state.Cell) error{
		"revoke": func(b *bed, c *state.Cell) error {
			_, err := b.Revoke(b.ctx, "mine", api.RevokeRequest{All: true}, b, seesAll)
			return err
		},
		"remove": func(b *bed, c *state.Cell) error {
			_, err := b.RemoveCredential(b.ctx, "mine")
			return err
		},
		"policy": func(b *bed, c *state.Cell) error { return b.SetPolicy(b.ctx, c.ID, barePolicy, false) },
	} {
		for _, held := range []string{"refresh", "change"} {
			t.Run(name+", held "+held, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					b := newBed(t)
					b.storeToken("mine", testToken)
					c, g := b.governed("a")
					release := make(chan struct{})
					hold := func(context.Context) error {
						if n, _ := g.heard(); n == 1 {
							<-release
						}
						return nil
					}
					first, second := func() error { return b.Refresh(b.ctx, c.ID) }, func() error { return change(b, c) }
					if g.does(hold, nil); held == "change" {
						g.does(nil, hold)
						first, second = second, first
					}
					done := make(chan error, 2)
					for _, f := range []func() error{first, second} {
						go func() { done <- f() }()
						synctest.Wait()
					}
					close(release)
					b.must(errors.Join(<-done, <-done))
					b.lends(g, 2, false)
				})
			})
		}
	}
}

// A Refresh waits until a change is recorded that the gateway has already, and not when it failed.
func TestRefreshAwaitsTheRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.storeToken("mine", testToken)
		c, g := b.governed("a")
		refused := errors.New("refused")
		g.does(func(context.Context) error { return refused }, nil)
		changed := *c
		if _, err := b.change(&changed, g, barePolicy); !errors.Is(err, refused) {
			t.Fatal(err)
		}
		g.does(nil, nil)
		b.must(b.Refresh(b.ctx, c.ID))
		b.lends(g, 2, true)

		recorded, err := b.change(c, g, barePolicy)
		b.must(err)
		b.lends(g, 3, false)
		done := make(chan error, 1)
		go func() { done <- b.Refresh(b.ctx, c.ID) }()
		synctest.Wait()
		b.lends(g, 3, false)
		b.must(b.reg.Commit(c))
		recorded()
		b.must(<-done)
		b.lends(g, 4, false)
	})
}
