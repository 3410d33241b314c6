package govern

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/api"
)

// login stores the credential of a login file, and returns what makes the file say something else.
func (b *bed) login(secret string) (write func(secret string)) {
	b.Helper()
	at := filepath.Join(b.TempDir(), "login")
	write = func(secret string) {
		b.Helper()
		text := []byte(`{"claudeAiOauth":{"accessToken":"` + secret + `"}}`)
		b.must(errors.Join(os.WriteFile(at+".new", text, 0o600), os.Rename(at+".new", at)))
	}
	write(secret)
	_, err := b.AddCredential(b.ctx, api.CredentialRequest{Name: "mine", Login: "claude", Path: at, For: []string{"https://api.example.com/**"}, Env: []string{"TOKEN"}})
	b.must(err)
	return write
}

// The cells of a renewed login are told once each. One that refuses, and one that never answers,
// are told again, ever more seldom, and hold up neither the others nor a later renewal. A cell with
// a keeper that is not reached is left alone.
func TestKeepLogins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		var log logged
		b.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		const one, two, three = "sk-ant-oat01-1111111111111111", "sk-ant-oat01-2222222222222222", "sk-ant-oat01-3333333333333333"
		write := b.login(one)
		_, good := b.governed("good")
		_, other := b.governed("other")
		_, bad := b.governed("bad")
		_, hung := b.governed("hung")
		unreached, _ := b.governed("unreached")
		delete(b.alive, unreached.ID)
		b.silent[unreached.ID] = 0
		resting, _ := b.governed("resting")
		delete(b.alive, resting.ID)

		ctx, cancel := context.WithCancel(b.ctx)
		ended := make(chan struct{})
		go func() { b.KeepLogins(ctx); close(ended) }()
		told := func(what string, g *governed, least, most int, secret string) {
			t.Helper()
			if n, last := g.heard(); n < least || n > most || last.Credentials[0].Secret != secret {
				t.Errorf("%s: told %d times, want %d to %d times; it has %s, want %s", what, n, least, most, last.Credentials[0].Secret, secret)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, g := range []*governed{good, other, bad, hung} {
			told("at the start", g, 1, 1, one) // a daemon before this one may have told them something else
			g.forget()
		}

		bad.does(func(context.Context) error { return errors.New("refused") }, nil)
		hung.does(func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }, nil)
		write(two)
		time.Sleep(renewalTick + time.Second/2)
		synctest.Wait()
		told("good, at once", good, 1, 1, two)
		told("other, at once", other, 1, 1, two)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		told("good", good, 1, 1, two)
		told("other", other, 1, 1, two)
		told("bad", bad, 10, 20, one)
		told("hung", hung, 10, 20, one)
		if b.redactor.String(two) != "[secret]" {
			t.Error("the redactor does not know the renewed login")
		}

		write(three)
		time.Sleep(tellWithin + 2*renewalTick)
		synctest.Wait()
		told("good, of the next", good, 2, 2, three)
		told("other, of the next", other, 2, 2, three)
		if got := strings.Count(log.String(), "\n"); got != 2 || !strings.Contains(log.String(), "refused") || !strings.Contains(log.String(), "its keeper did not answer in 10s") {
			t.Errorf("the log has %d lines:\n%s", got, log.String())
		}

		bad.does(nil, nil)
		hung.does(nil, nil)
		time.Sleep(2 * maxBackoff)
		synctest.Wait()
		bad.forget()
		hung.forget()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		told("bad, when it answers again", bad, 0, 0, three)
		told("hung, when it answers again", hung, 0, 0, three)
		if n := b.silent[unreached.ID]; n > 0 {
			t.Errorf("the keeper that was not reached was asked for %d times", n)
		}
		cancel()
		<-ended
	})
}

// logged is a log that is read while it is written.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// The end of the daemon does not wait for a cell that never answers.
func TestKeepLoginsEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.login("sk-ant-oat01-1111111111111111")
		_, g := b.governed("hung")
		g.does(func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }, nil)
		ctx, cancel := context.WithCancel(b.ctx)
		const end = 5 * renewalTick / 2 // between two ticks
		time.AfterFunc(end, cancel)
		began := time.Now()
		b.KeepLogins(ctx)
		told, _ := g.heard()
		if took := time.Since(began); took != end || told == 0 {
			t.Errorf("it ended after %s, and told the cell %d times", took, told)
		}
	})
}
