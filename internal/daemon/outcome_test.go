package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/backend/mem"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/engine"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/store"
	"github.com/pando-dev/pando/internal/store/disk"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/clone"
)

// installation is a daemon with an engine. Its state can be copied at any moment: the copy is
// what the next daemon finds when this one is killed then.
type installation struct {
	*Daemon
	srv  *httptest.Server
	home paths.Home
	eng  *engine.Engine

	mu   sync.Mutex
	tree func() // called when a tree is stored; nil after that
}

// trees are objects that tell when one is stored.
type trees struct {
	store.Store
	in *installation
}

func (s trees) Put(d cell.Digest, b []byte) error {
	s.in.mu.Lock()
	then := s.in.tree
	s.in.tree = nil
	s.in.mu.Unlock()
	if then != nil {
		then()
	}
	return s.Store.Put(d, b)
}

// install starts a daemon on a state; around is called instead of the handler of a route.
func install(t *testing.T, state string, tokens *access.Store, around func(route Route, handle func() (any, error)) (any, error)) *installation {
	t.Helper()
	return installWith(t, state, tokens, nil, around)
}

func installWith(t *testing.T, state string, tokens *access.Store, audit *Audit, around func(route Route, handle func() (any, error)) (any, error)) *installation {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	in := &installation{home: paths.Home{State: state, Cache: t.TempDir(), Run: t.TempDir()}}
	must(in.home.Make())
	key, err := receipt.OpenKey(durable.Disk(in.home.Keys()))
	must(err)
	ledger, err := receipt.OpenLedger(durable.Disk(in.home.Ledger()), key)
	must(err)
	objects, err := disk.Open(in.home.Trees())
	must(err)
	credentials, err := credential.Open(credential.Config{Dir: durable.Disk(in.home.Credentials()), Keys: durable.Disk(in.home.Keys())})
	must(err)
	discard := slog.New(slog.DiscardHandler)
	in.eng, err = engine.Open(t.Context(), engine.Config{
		Home: in.home, ReachGrace: 300 * time.Millisecond, Log: discard, Backends: []backend.Backend{(&mem.Host{}).Open()},
		Providers: []workspace.Provider{clone.New(in.home.Layers())}, Objects: trees{objects, in}, Ledger: ledger, Credentials: credentials, Version: "test",
		User: cell.User{UID: os.Getuid(), GID: os.Getgid(), Name: "u", Home: "/home/u"}, Host: policy.Host{CPUs: 2, Memory: 4 << 30},
	})
	must(err)
	keys, err := operation.OpenKeys(durable.Disk(state), "idempotency.log")
	must(err)
	ops, err := operation.Open(durable.Disk(state), "operations.log", discard)
	must(err)
	in.eng.SettleAllBut(append(keys.Open(), ops.Open()...))
	in.Daemon, in.srv = house(t, Config{Engine: in.eng.All(), Keys: keys, Operations: ops, Settle: in.eng.SettleRequest, Audit: audit})
	if tokens != nil {
		in.cfg.Tokens = tokens
	}
	table := slices.Clone(Routes)
	if around != nil {
		for i, route := range table {
			table[i].handle = func(d *Daemon, w http.ResponseWriter, r *http.Request) (any, error) {
				return around(route, func() (any, error) { return route.handle(d, w, r) })
			}
		}
	}
	in.mux = in.routes(table)
	if tokens == nil { // callers are the user
		in.srv = httptest.NewServer(in.local())
		t.Cleanup(in.srv.Close)
	}
	ctx, stop := context.WithCancel(t.Context())
	must(in.resumeOperations(ctx))
	t.Cleanup(func() {
		stop()
		ops.Wait()
		must(in.eng.Close())
		must(ops.Close())
		must(keys.Close())
		must(ledger.Close())
		must(objects.Close())
	})
	return in
}

// copied is the state of this moment. What is removed meanwhile is not in it.
func (in *installation) copied(t *testing.T) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "state")
	err := filepath.WalkDir(in.home.State, func(path string, e fs.DirEntry, err error) error {
		rel, rerr := filepath.Rel(in.home.State, path)
		err = errors.Join(err, rerr)
		if err == nil {
			err = copyEntry(path, filepath.Join(to, rel), e)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return to
}

// copyEntry copies a file, a symlink, or a directory without what is in it.
func copyEntry(from, to string, e fs.DirEntry) error {
	st, err := e.Info()
	if err != nil {
		return err
	}
	switch {
	case e.IsDir():
		return os.MkdirAll(to, st.Mode().Perm()|0o700)
	case e.Type() == fs.ModeSymlink:
		at, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(at, to)
	case !e.Type().IsRegular():
		return nil
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, st.Mode().Perm())
}

// moments are when the daemon of a test is killed.
var moments = []string{"before the work", "in the middle", "after the work"}

// killed sends a request to a daemon, and returns the daemon that follows when the first is
// killed at a moment of it. made is the answer that did not arrive.
func killed(t *testing.T, moment, path, body, secret string, tokens *access.Store, head ...string) (next *installation, made string) {
	t.Helper()
	var in *installation
	var left string
	var begun []byte // the operations, before any has ended
	in = install(t, filepath.Join(t.TempDir(), "state"), tokens, func(route Route, handle func() (any, error)) (any, error) {
		switch moment {
		case "before the work":
			left = in.copied(t)
		case "in the middle":
			in.tree = func() { left = in.copied(t) }
		case "after the work":
			in.tree = func() { begun, _ = os.ReadFile(filepath.Join(in.home.State, "operations.log")) }
		}
		out, err := handle()
		if moment == "after the work" {
			in.cfg.Operations.Wait()
			left = in.copied(t)
			if err := os.WriteFile(filepath.Join(left, "operations.log"), begun, 0o600); err != nil {
				t.Error(err)
			}
		}
		return out, err
	})
	_, made, _ = put(t, in.srv, "POST", path, secret, body, head...)
	in.cfg.Operations.Wait()
	if left == "" {
		t.Fatalf("no daemon was killed %s: %s; %+v", moment, made, in.cfg.Operations.List(access.Local))
	}
	return install(t, left, tokens, nil), made
}

func cellsOf(t *testing.T, in *installation, secret string) (list []api.Cell) {
	t.Helper()
	_, body, _ := put(t, in.srv, "GET", "/v1/cells", secret, "")
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		t.Fatal(body, err)
	}
	return list
}

// A request with a key, under which the daemon is killed at any moment, is done once: its repetition has the
// answer of what is there, or does what is not.
func TestKeysAfterAKill(t *testing.T) {
	tokens, err := access.Open(durable.Disk(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	_, secret, err := tokens.Create("", access.Admin, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	for _, moment := range moments {
		for _, accept := range []string{"application/json", jsonLines} {
			head := []string{"Idempotency-Key: k", "Accept: " + accept}
			next, made := killed(t, moment, "/v1/cells", `{"name":"web"}`, secret, tokens, head...)
			status, again, _ := put(t, next.srv, "POST", "/v1/cells", secret, `{"name":"web"}`, head...)
			list := cellsOf(t, next, secret)
			if status != http.StatusOK || len(list) != 1 || list[0].Name != "web" || !strings.Contains(again, list[0].ID) {
				t.Errorf("killed %s: %d %s; there are %+v", moment, status, again, list)
				continue
			}
			if same := strings.Contains(made, list[0].ID); same != (moment == "after the work") {
				t.Errorf("killed %s: the same cell: %v", moment, same)
			}
			if status, third, h := put(t, next.srv, "POST", "/v1/cells", secret, `{"name":"web"}`, head...); status != http.StatusOK || third != again || h.Get("Idempotent-Replayed") != "true" {
				t.Errorf("killed %s, and asked a third time: %d %s %v", moment, status, third, h)
			}
		}
	}
}

// An operation under which the daemon is killed at any moment is done, or has failed: what is there says
// which.
func TestOperationsAfterAKill(t *testing.T) {
	tokens, err := access.Open(durable.Disk(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	_, secret, err := tokens.Create("", access.Admin, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	for _, moment := range moments[1:] {
		head := []string{async, "Idempotency-Key: k"}
		next, answer := killed(t, moment, "/v1/cells", `{"name":"web"}`, secret, tokens, head...)
		o := operationIn(t, answer)
		_, body, _ := put(t, next.srv, "GET", "/v1/operations/"+o.ID+"?wait=1", secret, "")
		now := operationIn(t, body)
		list := cellsOf(t, next, secret)
		switch {
		case moment == "after the work":
			if len(list) != 1 || now.State != api.OperationDone || now.Object != list[0].ID || !strings.Contains(string(now.Result), list[0].ID) {
				t.Errorf("killed %s: %s; there are %+v", moment, body, list)
			}
		case now.State != api.OperationFailed || now.Error == nil || now.Error.Kind != "unavailable" || !strings.Contains(now.Error.Message, "nothing was changed") || len(list) > 0:
			t.Errorf("killed %s: %s; there are %+v", moment, body, list)
		}
		// The answer is the key's: it does not depend on how long the operation is known.
		if status, again, h := put(t, next.srv, "POST", "/v1/cells", secret, `{"name":"web"}`, head...); status != http.StatusAccepted || operationIn(t, again).ID != o.ID ||
			h.Get("Location") != "/v1/operations/"+o.ID || h.Get("Idempotent-Replayed") != "true" {
			t.Errorf("killed %s, and asked again: %d %s %v", moment, status, again, h)
		}
	}
}

// A run goes on, or is ended, by the next daemon; its operation has it at its end. One that was
// handed over by a daemon that ended in peace is no other.
func TestRunsAfterAKill(t *testing.T) {
	body, err := json.Marshal(api.RunRequest{Command: []string{"true"}, From: t.TempDir(), CallerEnv: []string{"PATH=/usr/bin:/bin"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, moment := range moments[1:] {
		next, answer := killed(t, moment, "/v1/runs", string(body), "", nil, async)
		_, text, _ := put(t, next.srv, "GET", "/v1/operations/"+operationIn(t, answer).ID+"?wait=1", "", "")
		o := operationIn(t, text)
		var run api.Run
		if err := json.Unmarshal(o.Result, &run); err != nil || o.State != api.OperationDone || o.Object != run.ID || run.Phase != string(cell.Ended) || (run.Error == nil) != (moment == "after the work") {
			t.Errorf("killed %s: %s", moment, text)
		}
		_, text, _ = put(t, next.srv, "GET", "/v1/runs", "", "")
		var runs []api.Run
		if err := json.Unmarshal([]byte(text), &runs); err != nil || len(runs) != 1 || runs[0].ID != run.ID {
			t.Errorf("killed %s: %s", moment, text)
		}
	}
}

// What a request has made, and its caller no longer sees, is not made again: the repetition says
// that it is not there.
func TestKeysOfWhatIsAnothersNow(t *testing.T) {
	tokens, err := access.Open(durable.Disk(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	_, secret, err := tokens.Make("", access.Run, time.Time{}, access.Bounds{Labels: map[string]string{"team": "a"}})
	if err != nil {
		t.Fatal(err)
	}
	const key, body = "Idempotency-Key: k", `{"cell":"w","command":["true"]}`
	var in *installation
	var left string
	in = install(t, filepath.Join(t.TempDir(), "state"), tokens, func(_ Route, handle func() (any, error)) (any, error) {
		out, err := handle()
		if r, ok := out.(api.Run); ok && err == nil {
			_, err = in.eng.All().WaitRun(t.Context(), cell.RunID(r.ID))
			left = in.copied(t)
		}
		return out, err
	})
	put(t, in.srv, "POST", "/v1/cells", secret, `{"name":"w"}`)
	_, made, _ := put(t, in.srv, "POST", "/v1/runs", secret, body, key)
	if left == "" {
		t.Fatal(made)
	}
	next := install(t, left, tokens, nil)
	runs := next.eng.All().Runs("")
	if len(runs) != 1 || !strings.Contains(made, runs[0].ID) {
		t.Fatalf("%s: %+v", made, runs)
	}
	if _, err := next.eng.All().Lease(t.Context(), cell.ID(runs[0].Cell), api.LeaseRequest{Labels: map[string]string{"team": "b"}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		status, again, _ := put(t, next.srv, "POST", "/v1/runs", secret, body, key)
		if n := len(next.eng.All().Runs("")); status != http.StatusNotFound || !strings.Contains(again, "what it made") || n != 1 {
			t.Errorf("%d %s; there are %d", status, again, n)
		}
	}
}

// An operation that a daemon resumes ends with the token that it was begun with, as any other does,
// and its end is in the audit log.
func TestResumedOperationsEndWithTheirToken(t *testing.T) {
	tokens, err := access.Open(durable.Disk(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	_, admin, err := tokens.Create("", access.Admin, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	for _, gone := range []bool{false, true} {
		k, secret, err := tokens.Create("", access.Admin, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		var in *installation
		var left string
		in = install(t, filepath.Join(t.TempDir(), "state"), tokens, func(route Route, handle func() (any, error)) (any, error) {
			if route.Operation() == "run" {
				in.tree = func() { left = in.copied(t) }
			}
			return handle()
		})
		put(t, in.srv, "POST", "/v1/cells", secret, `{"name":"w"}`)
		_, body, _ := put(t, in.srv, "POST", "/v1/runs", secret, `{"cell":"w","command":["true"]}`, async)
		o := operationIn(t, body)
		in.cfg.Operations.Wait()
		if left == "" {
			t.Fatal(body)
		}
		if gone {
			if _, err := tokens.Remove(k.ID); err != nil {
				t.Fatal(err)
			}
		}
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		audit, err := OpenAudit(path)
		if err != nil {
			t.Fatal(err)
		}
		defer audit.Close()
		next := installWith(t, left, tokens, audit, nil)
		_, body, _ = put(t, next.srv, "GET", "/v1/operations/"+o.ID+"?wait=1", admin, "")
		next.cfg.Operations.Wait()
		now := operationIn(t, body)
		want, status := api.OperationDone, http.StatusOK
		if gone {
			want, status = api.OperationFailed, http.StatusUnauthorized
		}
		if now.State != want || gone && now.Error.Kind != "unauthenticated" {
			t.Errorf("gone: %v: %s", gone, body)
		}
		var l auditLine
		text := readAll(t, path)
		for s := range strings.Lines(text) {
			if strings.Contains(s, o.ID+`","took`) {
				if err := json.Unmarshal([]byte(s), &l); err != nil {
					t.Error(err)
				}
			}
		}
		if l.Operation != o.ID || l.Token != k.ID || l.Who != k.Name || l.Status != status || l.What != "POST /v1/runs" || l.Request != o.Request {
			t.Errorf("gone: %v: %+v in %s", gone, l, text)
		}
	}
}

// Work that is bound to a token ends when that is removed, and when it expires.
func TestWorkOfATokenEndsWithIt(t *testing.T) {
	for _, how := range []string{"removed", "expired"} {
		synctest.Test(t, func(t *testing.T) {
			tokens, err := access.Open(durable.Disk(t.TempDir()))
			if err != nil {
				t.Fatal(err)
			}
			k, _, err := tokens.Create("", access.Run, time.Now().Add(time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			d := &Daemon{cfg: Config{Tokens: tokens}}
			time.AfterFunc(time.Minute, func() {
				if how == "removed" {
					tokens.Remove(k.ID)
				}
			})
			began := time.Now()
			_, err = d.withToken(k.ID, func(ctx context.Context, _ func(api.StreamLine)) (any, error) {
				select {
				case <-ctx.Done():
				case <-time.After(24 * time.Hour):
				}
				return nil, ctx.Err()
			})(t.Context(), nil)
			if took := time.Since(began); cell.KindOf(err) != cell.Unauthenticated || took > time.Hour || how == "removed" && took != time.Minute {
				t.Errorf("%s: %v after %v", how, err, took)
			}
		})
	}
}
