package push

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable/durabletest"
	"github.com/pando-dev/pando/internal/receipt"
)

// source is an installation with a ledger and nothing else.
type source struct {
	t      *testing.T
	key    *receipt.Key
	ledger *receipt.Ledger
	cut    int64 // a bundle from there breaks off
}

func newSource(t *testing.T, key *receipt.Key) *source {
	t.Helper()
	var err error
	if key == nil {
		if key, err = receipt.OpenKey(durabletest.New()); err != nil {
			t.Fatal(err)
		}
	}
	l, err := receipt.OpenLedger(durabletest.New(), key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &source{t, key, l, -1}
}

// fill appends receipts until there are n; what they say is of the word.
func (s *source) fill(n int, word string) *source {
	s.t.Helper()
	for i := int(s.ledger.Len()); i < n; i++ {
		_, err := s.ledger.Append(s.t.Context(), receipt.Request{Key: fmt.Sprintf("r-%d/run", i), Type: receipt.PredicateRun, Predicate: map[string]any{"word": word},
			Subjects: []receipt.Subject{{Name: "x", Digest: cell.Sum([]byte(word))}}})
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return s
}

func (s *source) PublicKey(context.Context) ([]byte, error) {
	return s.ledger.Keys().Current().PEM(), nil
}

func (s *source) Ledger(_ context.Context, since int64) (api.Ledger, error) {
	h := s.ledger.Head()
	out := api.Ledger{Size: h.Size, Head: string(h.Note)}
	changes, err := s.ledger.Changes()
	if err != nil {
		return out, err
	}
	for _, c := range changes {
		out.Changes = append(out.Changes, api.KeyChange{Index: c.Index, Envelope: c.Envelope})
	}
	if since > 0 && since < h.Size {
		proof, err := s.ledger.Extends(h, since)
		if err != nil {
			return out, err
		}
		for _, d := range proof {
			out.Extends = append(out.Extends, d.String())
		}
	}
	return out, nil
}

func (s *source) BundleFrom(_ context.Context, from, to int64) (io.ReadCloser, error) {
	head, err := s.ledger.HeadAt(to)
	if err != nil {
		return nil, err
	}
	sel := receipt.Selection{Head: head, Since: from}
	for i := from; i < to; i++ {
		sel.Indexes = append(sel.Indexes, i)
	}
	f, err := s.ledger.SelectionFile(sel)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	if err := s.ledger.WriteArchive(&b, []receipt.ArchiveFile{f}, receipt.Contents{Head: head, Receipts: sel.Indexes}); err != nil {
		return nil, err
	}
	text := b.String()
	if from == s.cut {
		text = text[:len(text)/2]
	}
	return io.NopCloser(strings.NewReader(text)), nil
}

// verified asserts that a copy has n receipts and is as it was written.
func (s *source) verified(dir string, n int64) {
	s.t.Helper()
	rep, _, err := Verify(dir, s.key.Public(), nil)
	if err != nil || !rep.OK() || rep.Receipts != n {
		s.t.Errorf("the copy has %+v, %v; want %d receipts", rep, err, n)
	}
}

func (s *source) push(to Target, copied, behind int64) error {
	s.t.Helper()
	st, err := Push(s.t.Context(), s, to)
	if st.Copied != copied || st.Behind != behind || len(st.Problems) > 0 {
		s.t.Errorf("%+v, %v; want %d copied and %d behind", st, err, copied, behind)
	}
	return err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t *testing.T, what string, err error, kind cell.Kind) {
	t.Helper()
	if cell.KindOf(err) != kind {
		t.Errorf("%s: %v, want kind %s", what, err, kind)
	}
}

// contents are the files of a directory with their times, but for head.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	list, err := os.ReadDir(dir)
	must(t, err)
	out := map[string]string{}
	for _, e := range list {
		st, err := e.Info()
		must(t, err)
		if e.Name() != headName {
			out[e.Name()] = fmt.Sprint(st.ModTime().UnixNano(), st.Size())
		}
	}
	return out
}

// A copy has all receipts, goes on where it ended, and nothing in it is written twice.
func TestPushGoesOn(t *testing.T) {
	s := newSource(t, nil).fill(230, "a")
	dir := filepath.Join(t.TempDir(), "copy")
	to, err := Open(dir, "")
	must(t, err)
	if st, _, err := Look(t.Context(), s, to); err != nil || st.Behind != 230 {
		t.Errorf("of nothing: %+v, %v", st, err)
	}
	s.cut = 100
	if err := s.push(to, 100, 130); err == nil {
		t.Error("a bundle that broke off is taken")
	}
	s.verified(dir, 100)
	s.cut = -1
	must(t, s.push(to, 130, 0))
	s.verified(dir, 230)
	before := contents(t, dir)
	must(t, s.push(to, 0, 0))
	s.fill(231, "a")
	must(t, s.push(to, 1, 0))
	s.verified(dir, 231)
	after := contents(t, dir)
	for name, is := range before {
		if after[name] != is {
			t.Errorf("%s was written again", name)
		}
	}
	if len(after) != len(before)+1 {
		t.Errorf("the copy has %v, had %v", after, before)
	}
}

// A call that ended between a bundle and the head is finished by the next one, also when there is more by then.
func TestPushAfterAKill(t *testing.T) {
	s := newSource(t, nil).fill(5, "a")
	dir := t.TempDir()
	to, err := Open(dir, "")
	must(t, err)
	must(t, s.push(to, 5, 0))
	head, err := os.ReadFile(filepath.Join(dir, headName))
	must(t, err)
	s.fill(7, "a")
	must(t, s.push(to, 2, 0))
	must(t, os.WriteFile(filepath.Join(dir, headName), head, 0o600))
	must(t, s.push(to, 2, 0))
	s.verified(dir, 7)
	must(t, os.WriteFile(filepath.Join(dir, headName), head, 0o600))
	s.fill(9, "a")
	must(t, s.push(to, 4, 0))
	s.verified(dir, 9)
	must(t, os.WriteFile(filepath.Join(dir, bundleName(9, 10)), []byte("mine"), 0o600))
	s.fill(10, "a")
	wantKind(t, "a file in the place of a bundle", s.push(to, 0, 1), cell.Conflict)
}

// What a call left of a bundle that broke off is replaced; what has the head alone of it is not taken for it, and what has the
// same receipts in other words is.
func TestPushOverWhatIsThere(t *testing.T) {
	s := newSource(t, nil).fill(7, "a")
	from := func(w io.Writer) {
		r, err := s.BundleFrom(t.Context(), 0, 7)
		must(t, err)
		_, err = io.Copy(w, r)
		must(t, err)
	}
	var whole bytes.Buffer
	from(&whole)
	for what, x := range map[string]struct {
		there []byte
		kind  cell.Kind
	}{
		"nothing of it": {nil, ""},
		"a half of it":  {whole.Bytes()[:whole.Len()/2], ""},
		"more":          {append(bytes.Clone(whole.Bytes()), 0), ""},
		"one receipt":   {s.chosen(7, 3), cell.Conflict},
		"other text":    {[]byte("mine"), cell.Conflict},
	} {
		o := &objects{data: map[string]string{bundleName(0, 7): string(x.there)}}
		srv := httptest.NewServer(o)
		defer srv.Close()
		server, err := Open(srv.URL+"/evidence/?sig=S1G", "t0ken")
		must(t, err)
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, bundleName(0, 7)), x.there, 0o600))
		for _, to := range []Target{directory(dir), server} {
			if x.kind != "" {
				wantKind(t, what, s.push(to, 0, 7), x.kind)
				continue
			}
			must(t, s.push(to, 7, 0))
		}
		if x.kind == "" {
			s.verified(dir, 7)
			if file, err := os.ReadFile(filepath.Join(dir, bundleName(0, 7))); err != nil || string(file) != o.data[bundleName(0, 7)] {
				t.Errorf("%s: the server has another bundle than the directory: %v", what, err)
			}
		}
	}
}

// A key that is there is not replaced, also before there is anything else.
func TestPushKeepsTheKey(t *testing.T) {
	s, theirs := newSource(t, nil).fill(3, "a"), newSource(t, nil)
	dir := t.TempDir()
	path := filepath.Join(dir, keyName)
	must(t, os.WriteFile(path, theirs.key.Public().PEM(), 0o600))
	wantKind(t, "another key", s.push(directory(dir), 0, 0), cell.Conflict)
	if text, err := os.ReadFile(path); err != nil || !bytes.Equal(text, theirs.key.Public().PEM()) {
		t.Errorf("the key is %q, %v", text, err)
	}
}

// meanwhile is a place to which another call copies while this one writes a bundle.
type meanwhile struct {
	Target
	do func()
}

func (m meanwhile) Create(ctx context.Context, name string, r io.Reader, size int64) error {
	err := m.Target.Create(ctx, name, r, size)
	if name != keyName {
		m.do()
	}
	return err
}

func (m meanwhile) Lock(context.Context) (func(), error) { return func() {}, nil }

// The head of a copy is not lowered by a call that began earlier.
func TestPushKeepsTheHead(t *testing.T) {
	s := newSource(t, nil).fill(5, "a")
	dir := t.TempDir()
	to := meanwhile{directory(dir), func() {
		s.fill(7, "a")
		must(t, s.push(directory(dir), 7, 0))
	}}
	wantKind(t, "a call that was overtaken", s.push(to, 0, 5), cell.Unavailable)
	s.verified(dir, 7)
}

// Two calls at once are one after the other.
func TestPushTwiceAtOnce(t *testing.T) {
	s := newSource(t, nil).fill(130, "a")
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := Push(t.Context(), s, directory(dir)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s.verified(dir, 130)
}

// A server that sends elsewhere, and one that stops in the middle, are left.
func TestPushLeavesAServer(t *testing.T) {
	s := newSource(t, nil).fill(3, "a")
	asked := false
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked = true
		w.WriteHeader(http.StatusNotFound)
	}))
	defer elsewhere.Close()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/there") {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
			return
		}
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer srv.Close()
	to, err := Open(srv.URL+"/there", "")
	must(t, err)
	if wantKind(t, "another host", s.push(to, 0, 0), cell.Invalid); asked {
		t.Error("it was asked")
	}
	to, err = Open(srv.URL+"/slow", "")
	must(t, err)
	to.(*server).idle = 1
	if err := s.push(to, 0, 0); !errors.Is(err, errIdle) {
		t.Errorf("a server that stops: %v", err)
	}
}

// A copy of another ledger, of one that has more, and of another history are refused, and nothing is written.
func TestPushRefuses(t *testing.T) {
	s := newSource(t, nil).fill(5, "a")
	dir := t.TempDir()
	to, err := Open(dir, "")
	must(t, err)
	must(t, s.push(to, 5, 0))
	before := contents(t, dir)
	wantKind(t, "another key", newSource(t, nil).fill(9, "a").push(to, 0, 0), cell.Conflict)
	for n, behind := range map[int]int64{3: -2, 5: 0, 9: 4} {
		wantKind(t, fmt.Sprintf("another history of %d", n), newSource(t, s.key).fill(n, "b").push(to, 0, behind), cell.Conflict)
	}
	if after := contents(t, dir); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the copy has %v, had %v", after, before)
	}
	s.verified(dir, 5)
}

// What is done to a copy is named.
func TestVerifyCopy(t *testing.T) {
	for want, do := range map[receipt.Reason]func(dir string) error{
		receipt.Missing:   func(dir string) error { return os.Remove(filepath.Join(dir, bundleName(5, 7))) },
		receipt.Truncated: func(dir string) error { return os.Truncate(filepath.Join(dir, bundleName(5, 7)), 700) },
		receipt.Edited: func(dir string) error {
			return os.WriteFile(filepath.Join(dir, headName), []byte("pando.dev/ledger/x\n7\nAAAA\n"), 0o600)
		},
	} {
		s := newSource(t, nil).fill(5, "a")
		dir := t.TempDir()
		to, err := Open(dir, "")
		must(t, err)
		must(t, s.push(to, 5, 0))
		s.fill(7, "a")
		must(t, s.push(to, 2, 0))
		must(t, do(dir))
		rep, _, err := Verify(dir, s.key.Public(), nil)
		must(t, err)
		if len(rep.Problems) != 1 || rep.Problems[0].Reason != want {
			t.Errorf("%+v, want %s", rep.Problems, want)
		}
	}
}

// chosen is a genuine bundle of some receipts, under the head of the first size receipts.
func (s *source) chosen(size int64, indexes ...int64) []byte {
	s.t.Helper()
	head, err := s.ledger.HeadAt(size)
	must(s.t, err)
	f, err := s.ledger.SelectionFile(receipt.Selection{Head: head, Indexes: indexes})
	must(s.t, err)
	var b bytes.Buffer
	must(s.t, s.ledger.WriteArchive(&b, []receipt.ArchiveFile{f}, receipt.Contents{Head: head, Receipts: indexes}))
	return b.Bytes()
}

// A copy in which bundles were replaced by other genuine ones of the same ledger, with fewer receipts or without the proof that
// they go on, is not whole.
func TestVerifyCopyOfOtherBundles(t *testing.T) {
	for name, x := range map[string]struct {
		of   map[string][]int64
		want []receipt.Reason
	}{
		"fewer":    {map[string][]int64{bundleName(0, 5): {2}, bundleName(5, 7): {6}}, []receipt.Reason{receipt.Dropped, receipt.Dropped, receipt.Dropped, receipt.Dropped, receipt.Dropped}},
		"more":     {map[string][]int64{bundleName(5, 7): {4, 5, 6}}, []receipt.Reason{receipt.Added}},
		"no proof": {map[string][]int64{bundleName(5, 7): {5, 6}}, []receipt.Reason{receipt.Forked}},
	} {
		s := newSource(t, nil).fill(5, "a")
		dir := t.TempDir()
		to, err := Open(dir, "")
		must(t, err)
		must(t, s.push(to, 5, 0))
		s.fill(7, "a")
		must(t, s.push(to, 2, 0))
		for bundle, indexes := range x.of {
			size := int64(5)
			if bundle == bundleName(5, 7) {
				size = 7
			}
			must(t, os.WriteFile(filepath.Join(dir, bundle), s.chosen(size, indexes...), 0o600))
		}
		rep, _, err := Verify(dir, s.key.Public(), nil)
		must(t, err)
		var got []receipt.Reason
		for _, p := range rep.Problems {
			got = append(got, p.Reason)
		}
		if !slices.Equal(got, x.want) {
			t.Errorf("%s: %+v, want %s", name, rep.Problems, x.want)
		}
	}
}

// Bundles that overlap, of two calls at once, hide none that lead to the head.
func TestVerifyCopyWithOverlaps(t *testing.T) {
	s := newSource(t, nil).fill(5, "a")
	dir := t.TempDir()
	to, err := Open(dir, "")
	must(t, err)
	must(t, s.push(to, 5, 0))
	s.fill(7, "a")
	must(t, s.push(to, 2, 0))
	must(t, os.WriteFile(filepath.Join(dir, bundleName(0, 6)), s.chosen(6, 0, 1, 2, 3, 4, 5), 0o600))
	s.verified(dir, 7)
	must(t, os.Remove(filepath.Join(dir, bundleName(5, 7))))
	if rep, _, err := Verify(dir, s.key.Public(), nil); err != nil || len(rep.Problems) != 1 || rep.Problems[0].Reason != receipt.Missing {
		t.Errorf("without the last: %+v, %v", rep, err)
	}
}

// objects is a server that keeps objects, and refuses what it is told to.
type objects struct {
	mu    sync.Mutex
	data  map[string]string
	twice []string
	fail  string // of a name
}

func (o *objects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	name := strings.TrimPrefix(r.URL.Path, "/evidence/")
	user, password, _ := r.BasicAuth()
	if r.Header.Get("Authorization") != "Bearer t0ken" && user+password != "mesecret" || r.URL.Query().Get("sig") != "S1G" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	old, has := o.data[name]
	switch {
	case r.Method == "GET" && !has:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == "GET":
		io.WriteString(w, old)
	case strings.Contains(name, o.fail) && o.fail != "":
		w.WriteHeader(http.StatusServiceUnavailable)
	case has && r.Header.Get("If-None-Match") == "*":
		w.WriteHeader(http.StatusPreconditionFailed)
	default:
		if has && name != headName && name != keyName {
			o.twice = append(o.twice, name)
		}
		text, _ := io.ReadAll(r.Body)
		if r.ContentLength != int64(len(text)) {
			w.WriteHeader(http.StatusLengthRequired)
			return
		}
		o.data[name] = string(text)
		w.WriteHeader(http.StatusCreated)
	}
}

// A server has the same objects, after failures, too; no error has what is secret in the URL.
func TestPushToAServer(t *testing.T) {
	s := newSource(t, nil).fill(130, "a")
	o := &objects{data: map[string]string{}, fail: "receipts-000000000100"}
	srv := httptest.NewServer(o)
	defer srv.Close()
	to, err := Open(srv.URL+"/evidence/?sig=S1G", "t0ken")
	must(t, err)
	err = s.push(to, 100, 30)
	wantKind(t, "a server that fails", err, cell.Unavailable)
	o.fail = headName
	wantKind(t, "a server that fails at the head", s.push(to, 0, 30), cell.Unavailable)
	o.fail = ""
	must(t, s.push(to, 30, 0))
	if len(o.twice) > 0 {
		t.Errorf("written twice: %v", o.twice)
	}
	dir := t.TempDir()
	for name, text := range o.data {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	s.verified(dir, 130)

	basic := strings.Replace(srv.URL, "http://", "http://me:secret@", 1) + "/evidence?sig=S1G"
	to, err = Open(basic, "")
	must(t, err)
	must(t, s.push(to, 0, 0))
	srv.Close()
	wrong, err := Open(basic, "")
	must(t, err)
	_, err = Push(t.Context(), s, wrong)
	for _, text := range []string{fmt.Sprint(err), wrong.String(), to.String()} {
		if strings.Contains(text, "secret") || strings.Contains(text, "S1G") || strings.Contains(text, "me:") {
			t.Errorf("it says %q", text)
		}
	}
	wantKind(t, "a server that is gone", err, cell.Unavailable)
	if _, err := Open("ftp://me:secret@x/y", ""); cell.KindOf(err) != cell.Invalid || strings.Contains(err.Error(), "secret") {
		t.Errorf("another scheme: %v", err)
	}
	if errors.Is(err, fs.ErrNotExist) {
		t.Error("a server that is gone is an empty one")
	}
}

// change has another key sign, and revokes the one that did from a receipt on, if since is one.
func (s *source) change(since int64) receipt.PublicKey {
	s.t.Helper()
	next, err := receipt.OpenKey(durabletest.New())
	must(s.t, err)
	req := receipt.KeyRequest{Next: next}
	if since >= 0 {
		req.Revoke, req.Since = s.ledger.Keys().Current().ID(), since
	}
	_, err = s.ledger.ChangeKey(s.t.Context(), req)
	must(s.t, err)
	return next.Public()
}

// A copy goes on over changes of keys, wherever it was then, and each of the keys verifies all of it. What was copied under an
// older key is not copied again.
func TestPushGoesOnOverKeys(t *testing.T) {
	s := newSource(t, nil).fill(130, "a")
	dir := filepath.Join(t.TempDir(), "copy")
	to, err := Open(dir, "")
	must(t, err)
	s.cut = 100
	if err := s.push(to, 100, 30); err == nil {
		t.Error("a bundle that broke off is taken")
	}
	s.cut = -1
	keys := []receipt.PublicKey{s.key.Public(), s.change(-1)} // receipts are behind, and get heads of the second key
	s.fill(140, "a")
	must(t, s.push(to, 40, 0))
	must(t, s.push(to, 0, 0))
	keys = append(keys, s.change(-1))
	must(t, s.push(to, 1, 0))
	s.fill(250, "a")
	must(t, s.push(to, 109, 0))
	stranger := newSource(t, nil)
	for i, key := range append(keys, stranger.key.Public()) {
		rep, _, err := Verify(dir, key, nil)
		if err != nil || rep.OK() != (i < len(keys)) {
			t.Errorf("with key %d: %+v, %v", i, rep, err)
		}
		if i == len(keys) && rep.Problems[0].Reason != receipt.WrongKey {
			t.Errorf("%+v", rep.Problems)
		}
	}
	if err := stranger.fill(250, "a").push(to, 0, 0); cell.KindOf(err) != cell.Conflict {
		t.Errorf("a ledger with other keys is taken: %v", err)
	}

	// A call that was killed before it wrote the head, and then the key changed.
	head, err := os.ReadFile(filepath.Join(dir, headName))
	must(t, err)
	s.fill(253, "a")
	must(t, s.push(to, 3, 0))
	must(t, os.WriteFile(filepath.Join(dir, headName), head, 0o600))
	had := contents(t, dir)
	s.change(-1)
	must(t, s.push(to, 4, 0))
	must(t, s.push(to, 0, 0))
	for name, is := range had {
		if contents(t, dir)[name] != is {
			t.Errorf("%s was written again", name)
		}
	}
	s.verified(dir, 254)
}

// A copy names what a key signed that was revoked later, also where it was copied before.
func TestPushSaysWhatWasRevoked(t *testing.T) {
	s := newSource(t, nil).fill(5, "a")
	dir := t.TempDir()
	to, err := Open(dir, "")
	must(t, err)
	must(t, s.push(to, 5, 0))
	newest := s.change(3)
	s.fill(8, "a")
	must(t, s.push(to, 3, 0))
	for _, key := range []receipt.PublicKey{s.key.Public(), newest} {
		rep, _, err := Verify(dir, key, nil)
		must(t, err)
		var refused []int64
		for _, p := range rep.Problems {
			if p.Reason != receipt.Revoked {
				t.Errorf("%+v", p)
			}
			refused = append(refused, p.Index)
		}
		if !slices.Equal(refused, []int64{3, 4}) {
			t.Errorf("refused %v of %+v", refused, rep.Problems)
		}
	}

	// What was replaced in the copy, with the key of before, is not taken for what is to be there.
	forger := newSource(t, s.key).fill(5, "forged")
	into := t.TempDir()
	there, err := Open(into, "")
	must(t, err)
	must(t, forger.push(there, 5, 0))
	must(t, os.Remove(filepath.Join(into, headName)))
	s.ledger.Close()
	other := newSource(t, s.key).fill(5, "a")
	other.change(-1)
	if _, err := Push(t.Context(), other, there); err != nil { // 6 receipts at once: another bundle
		t.Error(err)
	}
	must(t, os.Remove(filepath.Join(into, headName)))
	b, err := other.BundleFrom(t.Context(), 0, 5)
	must(t, err)
	f, err := os.CreateTemp(t.TempDir(), "")
	must(t, err)
	defer f.Close()
	_, err = io.Copy(f, b)
	must(t, err)
	at, err := other.ledger.HeadAt(5)
	must(t, err)
	err = putBundle(t.Context(), there, bundleName(0, 5), f, other.ledger.Keys(), at.Root, 0, 5)
	wantKind(t, "a forged bundle", err, cell.Conflict)
}
