package evidence

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	provenance "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/testenv"
)

// entry is a file of a bundle.
type entry struct {
	name string
	data []byte
	kind byte
}

// bundled is a bundle of receipts, as it is written.
func (b *bed) bundled(r Reader, of ...string) []byte {
	b.Helper()
	x, err := b.Bundle(r, of, "")
	b.must(err)
	var out bytes.Buffer
	b.must(x.Write(&out))
	return out.Bytes()
}

func untar(t testing.TB, text []byte) (list []entry) {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(text)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.ModTime.Unix() != 0 || h.Uname != "" {
			t.Errorf("%s is of %s and %q", h.Name, h.ModTime, h.Uname)
		}
		list = append(list, entry{h.Name, data, h.Typeflag})
	}
}

func retar(list []entry) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range list {
		kind := e.kind
		if e.kind == tar.TypeXHeader { // which a writer makes alone
			kind = tar.TypeReg
		}
		w.Flush()
		at := out.Len()
		w.WriteHeader(&tar.Header{Name: e.name, Size: int64(len(e.data)), Mode: 0o644, Typeflag: kind, ModTime: time.Unix(0, 0)})
		if kind != e.kind {
			h := out.Bytes()[at:]
			h[156] = e.kind
			copy(h[148:], "        ")
			sum := 0
			for _, c := range h[:512] {
				sum += int(c)
			}
			copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
		}
		w.Write(e.data)
	}
	w.Close()
	return out.Bytes()
}

func namesOf(list []entry) (names []string) {
	for _, e := range list {
		names = append(names, e.name)
	}
	return names
}

// file is the data of the one file of a bundle with that end of its name.
func file(t testing.TB, list []entry, end string) *[]byte {
	t.Helper()
	for i := range list {
		if strings.HasSuffix(list[i].name, end) {
			return &list[i].data
		}
	}
	t.Fatalf("%q is not in %q", end, namesOf(list))
	return nil
}

// in edits JSON: what it returns in place of what it is given.
func in(t testing.TB, text *[]byte, edit func(v map[string]any)) {
	t.Helper()
	var v map[string]any
	d := json.NewDecoder(bytes.NewReader(*text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	edit(v)
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	*text = out
}

// payload replaces a text in the payload of an envelope.
func payload(t testing.TB, envelope any, old, new string) {
	t.Helper()
	e := envelope.(map[string]any)
	text, err := base64.StdEncoding.DecodeString(e["payload"].(string))
	if err != nil || !bytes.Contains(text, []byte(old)) {
		t.Fatalf("no %q in %s: %v", old, text, err)
	}
	e["payload"] = base64.StdEncoding.EncodeToString(bytes.ReplaceAll(text, []byte(old), []byte(new)))
}

func receiptsOf(v map[string]any) []any { return v["receipts"].([]any) }

func envelopeOf(v map[string]any, i int) any { return receiptsOf(v)[i].(map[string]any)["envelope"] }

// rehash makes all hashes of a bundle of the whole ledger fit again, as far as that is possible without the key: the head's
// root, and the digests that its list has.
func rehash(t testing.TB, list []entry) {
	t.Helper()
	in(t, file(t, list, "receipts.json"), func(v map[string]any) {
		var hashes []tlog.Hash
		n := int64(0)
		reader := tlog.HashReaderFunc(func(at []int64) (out []tlog.Hash, _ error) {
			for _, i := range at {
				out = append(out, hashes[i])
			}
			return out, nil
		})
		for i := range receiptsOf(v) {
			leaf, err := json.Marshal(envelopeOf(v, i))
			if err != nil {
				t.Fatal(err)
			}
			more, err := tlog.StoredHashes(n, leaf, reader)
			if err != nil {
				t.Fatal(err)
			}
			hashes, n = append(hashes, more...), n+1
		}
		root, err := tlog.TreeHash(n, reader)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(v["head"].(string), "\n")
		lines[2] = base64.StdEncoding.EncodeToString(root[:])
		v["head"] = strings.Join(lines, "\n")
	})
	relist(t, list)
}

// relist has a bundle's list name the files as they are.
func relist(t testing.TB, list []entry) {
	t.Helper()
	in(t, file(t, list, "contents.json"), func(e map[string]any) {
		text, err := base64.StdEncoding.DecodeString(e["payload"].(string))
		if err != nil {
			t.Fatal(err)
		}
		in(t, &text, func(s map[string]any) {
			for _, f := range s["subject"].([]any) {
				f := f.(map[string]any)
				sum := cell.Sum(*file(t, list, f["name"].(string)))
				f["digest"] = map[string]any{"sha256": fmt.Sprintf("%x", sum[:])}
			}
		})
		e["payload"] = base64.StdEncoding.EncodeToString(text)
	})
}

// What is done to a bundle is found with the public key alone, and pando and docs/verify/verify.py have the same word for it.
func TestBundleNamesWhatWasDone(t *testing.T) {
	python := testenv.Python(t)
	verifier, err := filepath.Abs("../../docs/verify/verify.py")
	if err != nil {
		t.Fatal(err)
	}
	b, other := newBed(t), newBed(t)
	c := b.cell()
	var runs []string
	for range 3 {
		r, s := b.begun(&c)
		s.begin()
		s.end()
		b.must(os.WriteFile(filepath.Join(r.Folder, "patch"), []byte("--- a\n"), 0o600))
		b.ended(&r, &c)
		runs = append(runs, r.ID)
	}
	b.run() // of another cell
	last, s := b.begun(&c)
	s.begin()
	s.end()
	b.ended(&last, &c)
	part, all := b.bundled(b.all(), last.ID), b.bundled(b.all(), "all")
	other.run()
	foreign := other.bundled(other.all(), "all")

	older, err := b.ledger.HeadAt(4)
	b.must(err)
	otherKind, err := b.ledger.Attest("https://pando.dev/other/v1", []receipt.Subject{}, receipt.Contents{})
	b.must(err)

	dir := t.TempDir()
	key := b.PublicKey()
	b.must(os.WriteFile(filepath.Join(dir, "key"), key, 0o600))
	public, err := receipt.ParsePublicKey(key)
	b.must(err)

	json := func(end string, edit func(map[string]any)) func(*testing.T, []entry) []entry {
		return func(t *testing.T, list []entry) []entry { in(t, file(t, list, end), edit); return list }
	}
	append_ := func(end string) func(*testing.T, []entry) []entry {
		return func(t *testing.T, list []entry) []entry {
			f := file(t, list, end)
			*f = append(*f, "forged\n"...)
			return list
		}
	}
	without := func(end string) func(*testing.T, []entry) []entry {
		return func(_ *testing.T, list []entry) []entry {
			return slices.DeleteFunc(list, func(e entry) bool { return strings.HasSuffix(e.name, end) })
		}
	}
	drop := func(i int) func(map[string]any) {
		return func(v map[string]any) { v["receipts"] = slices.Delete(receiptsOf(v), i, i+1) }
	}
	for _, x := range []struct {
		name string
		of   []byte
		do   func(t *testing.T, list []entry) []entry
		want string
	}{
		{"untouched part", part, func(_ *testing.T, l []entry) []entry { return l }, ""},
		{"untouched ledger", all, func(_ *testing.T, l []entry) []entry { return l }, ""},
		{"edit", part, json("receipts.json", func(v map[string]any) { payload(t, envelopeOf(v, 1), `"exit_code":3`, `"exit_code":0`) }), "edited"},
		{"edit of the ledger", all, json("receipts.json", func(v map[string]any) { payload(t, envelopeOf(v, 1), `"exit_code":3`, `"exit_code":0`) }), "edited"},
		{"edit and rehash", all, func(t *testing.T, list []entry) []entry {
			in(t, file(t, list, "receipts.json"), func(v map[string]any) { payload(t, envelopeOf(v, 1), `"exit_code":3`, `"exit_code":0`) })
			rehash(t, list)
			return list
		}, "recomputed"},
		{"file and list", part, func(t *testing.T, list []entry) []entry {
			append_("README")(t, list)
			relist(t, list)
			return list
		}, "recomputed"},
		{"drop", part, json("receipts.json", drop(1)), "dropped"},
		{"drop the last", part, json("receipts.json", drop(3)), "dropped"},
		{"drop of the ledger", all, json("receipts.json", drop(1)), "dropped"},
		{"drop the first of the ledger", all, json("receipts.json", drop(0)), "dropped"},
		{"swap", part, json("receipts.json", func(v map[string]any) { l := receiptsOf(v); l[0], l[1] = l[1], l[0] }), "reordered"},
		{"swap of the ledger", all, json("receipts.json", func(v map[string]any) { l := receiptsOf(v); l[0], l[1] = l[1], l[0] }), "reordered"},
		{"twice", part, json("receipts.json", func(v map[string]any) { v["receipts"] = append(receiptsOf(v), receiptsOf(v)[3]) }), "repeated"},
		{"end of the ledger", all, json("receipts.json", drop(4)), "truncated"},
		{"proof", part, json("receipts.json", func(v map[string]any) {
			p := receiptsOf(v)[0].(map[string]any)["proof"].([]any)
			p[0] = "sha256:" + strings.Repeat("0", 64)
		}), "not-included"},
		{"head", part, json("receipts.json", func(v map[string]any) {
			v["head"] = strings.Replace(v["head"].(string), "\n5\n", "\n6\n", 1)
		}), "recomputed"},
		{"foreign key", foreign, func(_ *testing.T, l []entry) []entry { return l }, "wrong-key"},
		{"foreign receipt", all, func(t *testing.T, list []entry) []entry {
			in(t, file(t, list, "receipts.json"), func(v map[string]any) {
				in(t, file(t, untar(t, foreign), "receipts.json"), func(w map[string]any) { receiptsOf(v)[0] = receiptsOf(w)[0] })
			})
			return list
		}, "wrong-key"},
		{"file changed", part, append_("/stdout"), "edited"},
		{"events changed", part, append_("/events.jsonl"), "edited"},
		{"readme changed", part, append_("README"), "edited"},
		{"key changed", part, append_("key.pub"), "edited"},
		{"provenance changed", part, append_(runs[0] + ".json"), "edited"},
		{"list changed", part, json("contents.json", func(v map[string]any) { payload(t, v, `"receipts":[0,1`, `"receipts":[1`) }), "recomputed"},
		{"file missing", part, without("/stdout"), "missing"},
		{"provenance missing", part, without(runs[0] + ".json"), "missing"},
		{"receipts missing", part, without("receipts.json"), "missing"},
		{"list missing", part, without("contents.json"), "truncated"},
		{"file added", part, func(_ *testing.T, l []entry) []entry { return append(l, entry{"runs/r-1/stdout", nil, tar.TypeReg}) }, "added"},
		{"file twice", part, func(_ *testing.T, l []entry) []entry {
			return append(l, entry{l[3].name, []byte("forged"), tar.TypeReg})
		}, "repeated"},
		{"symlink", part, func(_ *testing.T, l []entry) []entry { return append(l, entry{"x", nil, tar.TypeSymlink}) }, "added"},
		{"none of the receipts", part, json("receipts.json", func(v map[string]any) { v["receipts"] = []any{} }), "dropped"},
		{"older head of the ledger", all, json("receipts.json", func(v map[string]any) { v["head"] = string(older.Note) }), "truncated"},
		{"index out of this world", part, json("receipts.json", func(v map[string]any) {
			payload(t, envelopeOf(v, 3), `"exit_code":3`, `"exit_code":0`)
			receiptsOf(v)[3].(map[string]any)["index"] = int64(1) << 52
			delete(v, "chosen")
		}), "dropped edited"},
		{"another kind of list", part, func(t *testing.T, list []entry) []entry {
			*file(t, list, "contents.json") = slices.Concat(otherKind, []byte("\n"))
			return list
		}, "edited"},
		{"file with holes", part, func(_ *testing.T, l []entry) []entry {
			var records strings.Builder
			for _, r := range []string{"GNU.sparse.size=1099511627776", "GNU.sparse.numblocks=1", "GNU.sparse.map=1099511627776,0"} {
				fmt.Fprintf(&records, "%d %s\n", len(r)+4, r)
			}
			return append(l, entry{"x", []byte(records.String()), tar.TypeXHeader}, entry{"holes", nil, tar.TypeReg})
		}, "added"},
		{"cut", nil, nil, "truncated"},
	} {
		t.Run(x.name, func(t *testing.T) {
			text := part[:len(part)/2]
			if x.do != nil {
				text = retar(x.do(t, untar(t, x.of)))
			}
			rep, files, err := receipt.VerifyArchive(bytes.NewReader(text), public, nil)
			if err != nil {
				t.Fatal(err)
			}
			kinds := map[string]bool{}
			for _, p := range rep.Problems {
				kinds[string(p.Reason)] = true
			}
			if x.want == "" && files < 15 {
				t.Errorf("only %d files were compared", files)
			}
			path := filepath.Join(t.TempDir(), "bundle.tar")
			b.must(os.WriteFile(path, text, 0o600))
			out, err := exec.Command(python, verifier, path, "--key", filepath.Join(dir, "key")).CombinedOutput()
			theirs := wordsOf(out)
			want := map[string]bool{}
			for _, word := range strings.Fields(x.want) {
				want[word] = true
			}
			if fmt.Sprint(kinds) != fmt.Sprint(want) {
				t.Errorf("pando says %v, want %v:\n%+v", kinds, want, rep.Problems)
			}
			if fmt.Sprint(theirs) != fmt.Sprint(want) || (err == nil) != (x.want == "") {
				t.Errorf("verify.py says %v (%v), want %v:\n%s", theirs, err, want, out)
			}
		})
	}
}

// Over changes of keys both verifiers have the same word for what was done, with the first key pinned and with the newest.
func TestBundleOfSeveralKeys(t *testing.T) {
	python := testenv.Python(t)
	verifier, err := filepath.Abs("../../docs/verify/verify.py")
	if err != nil {
		t.Fatal(err)
	}
	b := newBed(t)
	c := b.cell()
	run := func() string {
		r, s := b.begun(&c)
		s.begin()
		s.end()
		b.must(os.WriteFile(filepath.Join(r.Folder, "patch"), []byte("--- a\n"), 0o600))
		b.ended(&r, &c)
		return r.ID
	}
	change := func(req receipt.KeyRequest, with bool) {
		if with {
			req.Next = newSigner(t)
		}
		_, err := b.ledger.ChangeKey(b.ctx, req)
		b.must(err)
	}
	first := b.ledger.Keys().Current()
	run()
	run()
	old := b.bundled(b.all(), "all")
	change(receipt.KeyRequest{Reason: "time <&>"}, true) // 2
	last := run()
	part, all := b.bundled(b.all(), last), b.bundled(b.all(), "all")
	second := b.ledger.Keys().Current()
	change(receipt.KeyRequest{Revoke: first.ID(), Since: 1, Reason: "lost"}, false)
	run()
	revoked, revokedAll := b.bundled(b.all(), last), b.bundled(b.all(), "all")
	change(receipt.KeyRequest{Revoke: second.ID(), Since: 5, Reason: "stolen"}, true)
	last = run()
	self, selfAll := b.bundled(b.all(), last), b.bundled(b.all(), "all")
	newest := b.ledger.Keys().Current()

	// What the one that has the first key can make: another ledger from its beginning, that goes on to a key of its own.
	other := newBed(t)
	other.close()
	b.must(os.RemoveAll(other.home.Ledger()))
	b.must(os.CopyFS(filepath.Join(filepath.Dir(other.home.State), "stolen"), os.DirFS(b.home.Keys())))
	b.must(os.RemoveAll(other.home.Keys()))
	b.must(os.Rename(filepath.Join(filepath.Dir(other.home.State), "stolen"), other.home.Keys()))
	b.must(other.home.Make())
	b.must(os.Chmod(filepath.Join(other.home.Keys(), receipt.KeyFile), 0o600))
	other.open()
	other.run()
	_, err = other.ledger.ChangeKey(b.ctx, receipt.KeyRequest{Next: newSigner(t)})
	b.must(err)
	other.run()
	forged := other.bundled(other.all(), "all")
	stranger := newBed(t)
	stranger.run()
	_, err = stranger.ledger.ChangeKey(b.ctx, receipt.KeyRequest{Next: newSigner(t)})
	b.must(err)
	stranger.run()
	foreign := stranger.bundled(stranger.all(), "all")

	keysOf := func(v map[string]any) []any { return v["keys"].([]any) }
	edit := func(do func(v map[string]any)) func(*testing.T, []entry) []entry {
		return func(t *testing.T, list []entry) []entry { in(t, file(t, list, "receipts.json"), do); return list }
	}
	untouched := func(_ *testing.T, l []entry) []entry { return l }
	from := func(bundle []byte, what string) any {
		var v map[string]any
		in(t, file(t, untar(t, bundle), "receipts.json"), func(w map[string]any) { v = w })
		return v[what]
	}
	for _, x := range []struct {
		name        string
		of          []byte
		do          func(t *testing.T, list []entry) []entry
		first, last string // with the first key, with the newest of the bundle's time
		newest      receipt.PublicKey
	}{
		{"rotated", part, untouched, "", "", second},
		{"rotated, all", all, untouched, "", "", second},
		{"of before, with the newest", old, untouched, "", "wrong-key", second},
		{"revoked", revoked, untouched, "revoked", "revoked", second},
		{"revoked, all", revokedAll, untouched, "revoked", "revoked", second},
		{"revoked itself", self, untouched, "revoked", "revoked", newest},
		{"revoked itself, all", selfAll, untouched, "revoked", "revoked", newest},
		{"change edited", part, edit(func(v map[string]any) { payload(t, keysOf(v)[0].(map[string]any)["envelope"], "time", "date") }), "edited", "edited", second},
		{"change edited, all", all, edit(func(v map[string]any) { payload(t, envelopeOf(v, 2), "time", "date") }), "edited", "edited", second},
		{"changes dropped", part, edit(func(v map[string]any) { delete(v, "keys") }), "wrong-key", "wrong-key", second},
		{"revocation dropped", revoked, edit(func(v map[string]any) { v["keys"] = keysOf(v)[:1] }), "dropped", "dropped", second},
		{"rotation dropped", revoked, edit(func(v map[string]any) { v["keys"] = keysOf(v)[1:] }), "dropped", "dropped", second},
		{"changes swapped", selfAll, edit(func(v map[string]any) { l := keysOf(v); l[1], l[2] = l[2], l[1] }), "dropped", "dropped", newest},
		{"change moved", part, edit(func(v map[string]any) { keysOf(v)[0].(map[string]any)["index"] = 3 }), "reordered", "reordered", second},
		{"change without proof", part, edit(func(v map[string]any) { delete(keysOf(v)[0].(map[string]any), "proof") }), "not-included", "not-included", second},
		{"by a foreign key", part, edit(func(v map[string]any) { v["keys"] = from(foreign, "keys") }), "wrong-key", "wrong-key", second},
		{"a ledger of the first key", forged, untouched, "", "wrong-key", second},
		{"its changes for others", forged, edit(func(v map[string]any) { v["keys"] = from(all, "keys") }), "forked wrong-key", "forked wrong-key", second},
		{"a head of before the change", all, edit(func(v map[string]any) { v["head"] = from(old, "head") }), "wrong-key", "wrong-key", second},
		{"receipt dropped", revoked, edit(func(v map[string]any) { v["receipts"] = receiptsOf(v)[:1] }), "dropped", "dropped", second},
		{"swap", all, edit(func(v map[string]any) { l := receiptsOf(v); l[1], l[3] = l[3], l[1] }), "reordered", "reordered", second},
		{"end", all, edit(func(v map[string]any) { v["receipts"] = receiptsOf(v)[:3] }), "truncated", "truncated", second},
	} {
		for i, pinned := range []receipt.PublicKey{first, x.newest} {
			want := map[string]bool{}
			for _, word := range strings.Fields([]string{x.first, x.last}[i]) {
				want[word] = true
			}
			text := retar(x.do(t, untar(t, x.of)))
			rep, _, err := receipt.VerifyArchive(bytes.NewReader(text), pinned, nil)
			b.must(err)
			kinds := map[string]bool{}
			for _, p := range rep.Problems {
				kinds[string(p.Reason)] = true
			}
			dir := t.TempDir()
			b.must(os.WriteFile(filepath.Join(dir, "b.tar"), text, 0o600))
			b.must(os.WriteFile(filepath.Join(dir, "key"), pinned.PEM(), 0o600))
			out, err := exec.Command(python, verifier, filepath.Join(dir, "b.tar"), "--key", filepath.Join(dir, "key")).CombinedOutput()
			if theirs := wordsOf(out); fmt.Sprint(theirs) != fmt.Sprint(want) || fmt.Sprint(kinds) != fmt.Sprint(want) || (err == nil) != (len(want) == 0) {
				t.Errorf("%s, key %d: want %v; pando says %v:\n%+v\nverify.py says %v:\n%s", x.name, i, want, kinds, rep.Problems, theirs, out)
			}
		}
	}
}

// wordsOf are the names of what is wrong, in the output of verify.py.
func wordsOf(out []byte) map[string]bool {
	words := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		if word, _, _ := strings.Cut(line, " "); strings.Trim(word, "abcdefghijklmnopqrstuvwxyz-") == "" && !strings.HasPrefix(line, "not shown: ") && word != "verified:" {
			words[word] = true
		}
	}
	return words
}

func newSigner(t *testing.T) *receipt.Key {
	t.Helper()
	k, err := receipt.OpenKey(durable.Disk(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// A bundle is the same each time, has what its receipts come from and what was decided, and says what is gone.
func TestBundleHasLineage(t *testing.T) {
	b := newBed(t)
	c := b.cell()
	one, s := b.begun(&c)
	s.begin()
	s.end()
	b.ended(&one, &c)
	b.run()
	b.must(one.Decide(cell.Accepted, "good", "user"))
	_, err := b.Seal(b.ctx, one.ID+"/accepted", state.Act{Act: "accept", Cell: string(c.ID), Backend: c.Backend}, &one)
	b.must(err)
	two, s := b.begun(&c)
	s.begin()
	s.end()
	b.ended(&two, &c)
	text := b.bundled(b.all(), two.ID)
	untar(t, text)
	if again := b.bundled(b.all(), two.ID); !bytes.Equal(again, text) {
		t.Error("the same bundle is another the second time")
	}
	if by := b.bundled(b.all(), string(c.ID)); !bytes.Equal(by, text) {
		t.Errorf("the bundle of the cell has %q, that of its last run %q", namesOf(untar(t, by)), namesOf(untar(t, text)))
	}
	x, err := b.Bundle(b.all(), []string{two.ID}, "")
	b.must(err)
	if want := []int64{0, 2, 3}; !slices.Equal(x.contents.Receipts, want) {
		t.Errorf("receipts %v, want %v: the run, that before it, and the decision on that", x.contents.Receipts, want)
	}
	key := b.PublicKey()
	public, err := receipt.ParsePublicKey(key)
	b.must(err)
	b.must(os.Remove(filepath.Join(one.Folder, "stdout")))
	rep, _, err := receipt.VerifyArchive(bytes.NewReader(b.bundled(b.all(), two.ID)), public, nil)
	if err != nil || !rep.OK() || !strings.Contains(strings.Join(rep.Unproven, "; "), "runs/"+one.ID+"/stdout") {
		t.Errorf("a file that is gone: %+v, %v", rep, err)
	}
}

// A caller that does not see a cell has nothing of it in a bundle, also where it leads to one that it sees.
func TestBundleIsOfWhatTheCallerSees(t *testing.T) {
	b := newBed(t)
	theirs := b.run()
	fork, err := b.Seal(b.ctx, theirs.Cell+"/fork/1", state.Act{Act: "fork", Cell: theirs.Cell, Run: theirs.ID, Backend: "namespace"})
	b.must(err)
	c := b.cell()
	c.Batch = theirs.Cell + "/fork/1"
	b.must(b.reg.Commit(&c))
	mine, s := b.begun(&c)
	s.begin()
	s.end()
	b.ended(&mine, &c)
	r := b.all()
	r.Sees = func(id cell.ID) bool { return id == c.ID }
	for of, list := range map[string][]entry{"run": untar(t, b.bundled(r, mine.ID)), "cell": untar(t, b.bundled(r, string(c.ID)))} {
		for _, e := range list {
			if strings.Contains(e.name, theirs.ID) || bytes.Contains(e.data, []byte(theirs.ID)) {
				t.Errorf("the bundle of a %s has %s of another's run", of, e.name)
			}
		}
	}
	_, err = b.Bundle(r, []string{fork.String()}, "")
	b.wantKind("another's receipt", err, cell.NotFound)
	if whole := namesOf(untar(t, b.bundled(b.all(), mine.ID))); !slices.Contains(whole, "runs/"+theirs.ID+"/stdout") {
		t.Errorf("the user's own has %q", whole)
	}
}

// A run with a patch is told as provenance of that patch, in the words of SLSA and in-toto.
func TestProvenance(t *testing.T) {
	b := newBed(t)
	c := b.cell()
	r, events := b.begun(&c)
	events.begin()
	events.end()
	b.must(os.WriteFile(filepath.Join(r.Folder, "patch"), []byte("--- a\n"), 0o600))
	b.ended(&r, &c)
	plain := b.run()
	list := untar(t, b.bundled(b.all(), "all"))
	if slices.ContainsFunc(list, func(e entry) bool { return e.name == "slsa/"+plain.ID+".json" }) {
		t.Error("a run without a patch has provenance")
	}
	var e struct{ Payload []byte }
	b.must(json.Unmarshal(*file(t, list, "slsa/"+r.ID+".json"), &e))
	var s intoto.Statement
	b.must(protojson.Unmarshal(e.Payload, &s))
	b.must(s.Validate())
	var p provenance.Provenance
	text, err := protojson.Marshal(s.Predicate)
	b.must(err)
	b.must(protojson.Unmarshal(text, &p))
	b.must(p.Validate())
	sum := cell.Sum([]byte("--- a\n"))
	if s.PredicateType != "https://slsa.dev/provenance/v1" || len(s.Subject) != 1 || s.Subject[0].Digest["sha256"] != fmt.Sprintf("%x", sum[:]) {
		t.Errorf("it is %s of %v", s.PredicateType, s.Subject)
	}
}

// The key signs nothing outside the ledger that could be taken for a receipt.
func TestAttestRefusesReceipts(t *testing.T) {
	b := newBed(t)
	subjects := []receipt.Subject{{Name: "x", Digest: cell.Sum(nil)}}
	for _, typ := range []string{receipt.PredicateRun, receipt.PredicateVerdict, receipt.PredicateFork, `a"b`} {
		_, err := b.ledger.Attest(typ, subjects, map[string]any{"key": "r-1/run"})
		b.wantKind(typ, err, cell.Invalid)
	}
}
