package memory_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/memory"
	"github.com/pando-dev/pando/internal/store/disk"
	"github.com/pando-dev/pando/internal/store/mem"
)

const page = 4096

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pages makes n pages: a third is text, a third noise, a third numbers.
func pages(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n*page)
	for i := range n {
		p := b[i*page : (i+1)*page]
		switch i % 3 {
		case 0:
			for j := range p {
				p[j] = "abcdefgh "[r.IntN(9)]
			}
		case 1:
			for j := 0; j < page; j += 8 {
				copy(p[j:], fmt.Appendf(nil, "%08x", r.Uint64()))
			}
		default:
			for j := 0; j < page; j += 8 {
				p[j], p[j+1] = byte(r.Uint32()), byte(j)
			}
		}
	}
	return b
}

// touch changes n pages of b, far apart.
func touch(b []byte, seed uint64, n int) []byte {
	b = bytes.Clone(b)
	for i := range n {
		copy(b[i*(len(b)/page/n)*page:], fmt.Sprintf("touched %d %d", seed, i))
	}
	return b
}

// insert puts a page in at the place of page at.
func insert(b []byte, seed uint64, at int) []byte {
	return slices.Concat(b[:at*page], pages(seed, 1), b[at*page:])
}

type content map[string][]byte

func (c content) files() (fs []memory.File) {
	for name, b := range c {
		fs = append(fs, memory.File{Name: name, Size: int64(len(b)), From: bytes.NewReader(b)})
	}
	return fs
}

// image is what a checkpoint of a runtime is like.
func image(b []byte) content {
	return content{"checkpoint.img": []byte("kernel state of " + cell.Sum(b).String()), "pages_meta.img": b[:100], "pages.img": b}
}

func save(t testing.TB, st memory.Store, c content, bases ...cell.Digest) (cell.Digest, memory.Stats) {
	t.Helper()
	root, stats, err := memory.Save(context.Background(), st, c.files(), bases...)
	must(t, err)
	return root, stats
}

func read(t testing.TB, dir string) content {
	t.Helper()
	c := content{}
	es, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range es {
		c[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name()))
		must(t, err)
	}
	return c
}

func equal(a, b content) bool { return maps.EqualFunc(a, b, bytes.Equal) }

// loads fails unless root has exactly what c has.
func loads(t testing.TB, st memory.Store, root cell.Digest, c content) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "image")
	must(t, memory.LoadDir(context.Background(), st, root, dir))
	if !equal(read(t, dir), c) {
		t.Fatal("what was loaded is not what was saved")
	}
}

// refuses fails unless loading is a Corrupt error that says all of words, and
// leaves nothing behind.
func refuses(t testing.TB, st memory.Store, root cell.Digest, words ...string) {
	t.Helper()
	dir := t.TempDir()
	err := memory.LoadDir(context.Background(), st, root, filepath.Join(dir, "image"))
	if cell.KindOf(err) != cell.Corrupt {
		t.Fatalf("loading it: %v", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Fatalf("%q does not say %q", err, w)
		}
	}
	if left := read(t, dir); len(left) > 0 {
		t.Fatal("something was left")
	}
}

func reach(t testing.TB, st memory.Store, roots ...cell.Digest) map[cell.Digest]bool {
	t.Helper()
	all := map[cell.Digest]bool{}
	for _, r := range roots {
		must(t, memory.Reach(st, r, all))
	}
	return all
}

// objects are those that make up an image.
func objects(t testing.TB, st memory.Store, root cell.Digest) map[cell.Digest][]byte {
	t.Helper()
	all := map[cell.Digest][]byte{}
	for d := range reach(t, st, root) {
		b, err := st.Get(d)
		must(t, err)
		all[d] = b
	}
	return all
}

// Whatever the files are, they come back; a hole is a hole again; and what is
// saved again writes nothing and has the same root.
func TestRoundTrip(t *testing.T) {
	tmp := t.TempDir()
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		n++
		dir := filepath.Join(tmp, fmt.Sprint(n))
		must(t, os.Mkdir(dir, 0o700))
		var zeros int64 // at least so many bytes are in holes
		for i := range rapid.IntRange(0, 3).Draw(r, "files") {
			f, err := os.Create(filepath.Join(dir, fmt.Sprintf("file%d", i)))
			must(t, err)
			var size int64
			for range rapid.IntRange(0, 6).Draw(r, "stretches") {
				seed := rapid.Uint64Range(0, 5).Draw(r, "seed")
				k := rapid.IntRange(1, 300).Draw(r, "pages")
				switch rapid.IntRange(0, 4).Draw(r, "kind") {
				case 0:
					size += int64(k) * page
					zeros += max(0, int64(k)-4) * page
					must(t, f.Truncate(size))
				case 1: // zeros that the file system has
					_, err = f.WriteAt(make([]byte, k*page), size)
					size += int64(k) * page
					zeros += max(0, int64(k)-4) * page
				case 2: // every other page is zeros
					b := pages(seed, k)
					for j := 0; j < k; j += 2 {
						clear(b[j*page : (j+1)*page])
					}
					_, err = f.WriteAt(b, size)
					size += int64(len(b))
				default:
					_, err = f.WriteAt(pages(seed, k), size)
					size += int64(k) * page
				}
				must(t, err)
			}
			if odd := rapid.IntRange(0, page).Draw(r, "odd"); odd%2 == 1 {
				_, err = f.WriteAt(pages(9, 1)[:odd], size)
				must(t, err)
			} else if odd > 0 {
				must(t, f.Truncate(size+int64(odd)))
			}
			must(t, f.Close())
		}
		st := mem.New()
		root, stats, err := memory.SaveDir(context.Background(), st, dir)
		must(t, err)
		if stats.Zeros < zeros {
			t.Fatalf("%d bytes of zeros are dropped, of at least %d", stats.Zeros, zeros)
		}
		out := filepath.Join(tmp, fmt.Sprint(n, "out"))
		must(t, memory.LoadDir(context.Background(), st, root, out))
		if !equal(read(t, dir), read(t, out)) {
			t.Fatal("what was loaded is not what was saved")
		}
		var blocks int64
		es, _ := os.ReadDir(out)
		for _, e := range es {
			var s unix.Stat_t
			must(t, unix.Stat(filepath.Join(out, e.Name()), &s))
			blocks += s.Blocks * 512
		}
		if most := stats.Bytes - stats.Zeros + 2*page*int64(len(es)); blocks > most+most/8 {
			t.Fatalf("%d bytes take %d on disk, %d are zeros", stats.Bytes, blocks, stats.Zeros)
		}
		again, more, err := memory.SaveDir(context.Background(), st, dir, root)
		must(t, err)
		if again != root || more.NewChunks != 0 || more.Written != 0 || more.Chunks != stats.Chunks {
			t.Fatalf("saved again it is %v, %+v; was %v, %+v", again, more, root, stats)
		}
	})
}

// A second image of the same cell shares nearly all of the first, also where
// pages came and went in between.
func TestPagesPutInBetween(t *testing.T) {
	st := mem.New()
	first := pages(1, 4000)
	base, was := save(t, st, image(first))
	if was.NewChunks != was.Chunks || was.NewBytes < int64(len(first)) {
		t.Fatalf("first: %+v", was)
	}
	second := first
	for i, at := range []int{3500, 2000, 2000, 7} {
		second = insert(second, uint64(100+i), at)
	}
	second = slices.Concat(second[:1000*page], second[1003*page:])
	root, is := save(t, st, image(second), base)
	if is.NewBytes > 5*40*page || is.Written > was.Written/20 {
		t.Errorf("of %d bytes %d were new, %d written (first %d)", is.Bytes, is.NewBytes, is.Written, was.Written)
	}
	loads(t, st, root, image(second))
	if alone, _ := save(t, mem.New(), image(second)); alone != root {
		t.Error("the root depends on the base")
	}
}

// What is equal within an image is kept once.
func TestEqualChunksOnce(t *testing.T) {
	b := bytes.Repeat(pages(1, 200), 20)
	st := mem.New()
	root, stats := save(t, st, content{"pages.img": b})
	if stats.NewBytes > int64(len(b))/10 || stats.NewChunks > stats.Chunks/10 {
		t.Errorf("%+v", stats)
	}
	loads(t, st, root, content{"pages.img": b})
}

// What many cells begin from none of them writes to by mistake.
func TestD34LoadedFilesAreReadOnly(t *testing.T) {
	st := mem.New()
	root, _ := save(t, st, image(pages(1, 10)))
	dir := filepath.Join(t.TempDir(), "image")
	must(t, memory.LoadDir(context.Background(), st, root, dir))
	for name := range read(t, dir) {
		info, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		if info.Mode().Perm() != 0o444 {
			t.Errorf("%s is %v", name, info.Mode())
		}
	}
}

// failing refuses the nth Put, as a full disk does; and all that follow,
// unless there is space again.
type failing struct {
	memory.Store
	once bool
	mu   sync.Mutex // guards left
	left int
}

func (f *failing) Put(d cell.Digest, b []byte) error {
	f.mu.Lock()
	f.left--
	full := f.left < 0 && !f.once || f.left == -1
	f.mu.Unlock()
	if full {
		return fmt.Errorf("write: %w", unix.ENOSPC)
	}
	return f.Store.Put(d, b)
}

// A save that fails at any of its writes says why, leaves the image before as
// it was, and can be made again.
func TestD37D38FailedSaveLeavesTheImageBefore(t *testing.T) {
	st := mem.New()
	first := pages(1, 300)
	base, _ := save(t, st, image(first))
	next := image(touch(first, 1, 10))
	for n := 0; ; n++ {
		_, _, err := memory.Save(context.Background(), &failing{Store: st, left: n, once: n%2 == 0}, next.files(), base)
		loads(t, st, base, image(first))
		if err == nil {
			if n < 15 {
				t.Fatalf("only %d writes", n)
			}
			break
		}
		if !errors.Is(err, unix.ENOSPC) || !strings.HasPrefix(err.Error(), "cannot save the memory image") {
			t.Fatal(err)
		}
	}
	root, _ := save(t, st, next, base)
	loads(t, st, root, next)
}

// An image is not there if its save was ended at any write: its root comes last.
func TestD39HalfWrittenImageIsNone(t *testing.T) {
	c := image(pages(1, 300))
	root, _ := save(t, mem.New(), c)
	for n := 0; ; n++ {
		st := mem.New()
		_, _, err := memory.Save(context.Background(), &failing{Store: st, left: n}, c.files())
		if err == nil {
			break
		}
		if st.Has(root) {
			t.Fatalf("after %d writes it has the root", n)
		}
		refuses(t, st, root, "root", "missing")
	}
}

// The daemon dies while an image is loaded: what there is does not bear the
// image's name, and the next load begins anew.
func TestD39CrashWhileLoading(t *testing.T) {
	st := mem.New()
	c := image(pages(1, 300))
	root, _ := save(t, st, c)
	dir := filepath.Join(t.TempDir(), "image")
	seen := false
	slow := &watching{Store: st, get: func() {
		if _, err := os.Lstat(dir); err == nil {
			t.Error("it has its name before it is complete")
		}
		_, err := os.Lstat(dir + ".partial")
		seen = seen || err == nil
	}}
	must(t, memory.LoadDir(context.Background(), slow, root, dir))
	if !seen {
		t.Error("the test looks in the wrong place")
	}
	if err := memory.LoadDir(context.Background(), st, root, dir); cell.KindOf(err) != cell.Exists {
		t.Errorf("loading over it: %v", err)
	}
	must(t, os.Rename(dir, dir+".partial")) // as a crash leaves it
	must(t, os.Remove(filepath.Join(dir+".partial", "pages.img")))
	must(t, os.WriteFile(filepath.Join(dir+".partial", "stray"), nil, 0o600))
	must(t, memory.LoadDir(context.Background(), st, root, dir))
	if !equal(read(t, dir), c) {
		t.Error("what was loaded is not what was saved")
	}
}

type watching struct {
	memory.Store
	mu  sync.Mutex
	get func()
}

func (w *watching) Get(d cell.Digest) ([]byte, error) {
	w.mu.Lock()
	w.get()
	w.mu.Unlock()
	return w.Store.Get(d)
}

// An image in the middle of a chain goes, with all that is its own: those
// before and after it are whole. What is its own does go.
func TestD40DroppedImageInTheMiddle(t *testing.T) {
	st, err := disk.Open(t.TempDir())
	must(t, err)
	defer st.Close()
	var roots []cell.Digest
	var all []content
	b := pages(1, 600)
	for i := range 8 {
		b = insert(touch(b, uint64(i), 5), uint64(50+i), 70*i)
		all = append(all, image(b))
		var bases []cell.Digest
		if i > 0 {
			bases = roots[i-1:]
		}
		r, _ := save(t, st, all[i], bases...)
		roots = append(roots, r)
	}
	kept := append(slices.Clone(roots[:3]), roots[6:]...)
	keep := reach(t, st, kept...)
	own := reach(t, st, roots[4])
	freed, err := st.Keep(func(d cell.Digest) bool { return keep[d] })
	if err != nil || freed == 0 {
		t.Fatalf("freed %d, %v", freed, err)
	}
	gone := 0
	for d := range own {
		if !st.Has(d) {
			gone++
		}
	}
	if gone == 0 {
		t.Error("nothing of the dropped image is gone")
	}
	for i, r := range roots {
		if slices.Contains(kept, r) {
			loads(t, st, r, all[i])
		} else {
			refuses(t, st, r, "missing")
		}
	}
}

// A base that is gone, or was never there, is named; the image is whole.
func TestD40MissingBase(t *testing.T) {
	st := mem.New()
	b := pages(1, 300)
	base, _ := save(t, st, image(b))
	st.Keep(func(cell.Digest) bool { return false })
	root, stats := save(t, st, image(b), base)
	if root != base || !slices.Equal(stats.Unread, []cell.Digest{base}) || stats.NewChunks != stats.Chunks {
		t.Errorf("%+v", stats)
	}
	loads(t, st, root, image(b))

	// The base is there, and some of its chunks are not.
	n := 0
	drop := map[cell.Digest]bool{}
	for d, x := range objects(t, st, root) {
		if n++; !bytes.HasPrefix(x, []byte("pando ")) {
			drop[d] = n%2 == 0
		}
	}
	st.Keep(func(d cell.Digest) bool { return !drop[d] })
	_, stats = save(t, st, image(b), root)
	if stats.Unread != nil || stats.NewChunks == 0 || stats.NewChunks == stats.Chunks {
		t.Errorf("%+v", stats)
	}
	loads(t, st, root, image(b))
}

// A collection takes a chunk of the base away while the image is saved: the
// save fails, it does not make an image without it.
func TestD40ChunkOfBaseCollectedMeanwhile(t *testing.T) {
	st := mem.New()
	b := pages(1, 300)
	base, _ := save(t, st, image(b))
	next := image(touch(b, 1, 2))
	theirs := reach(t, st, base)
	_, _, err := memory.Save(context.Background(), &collecting{st, func(b []byte) {
		if bytes.HasPrefix(b, []byte("pando chunks")) {
			st.Keep(func(d cell.Digest) bool { return !theirs[d] })
		}
	}}, next.files(), base)
	if cell.KindOf(err) != cell.Conflict || !strings.Contains(err.Error(), "dropped meanwhile") {
		t.Fatal(err)
	}
}

// collecting calls what looks at each Put.
type collecting struct {
	memory.Store
	put func([]byte)
}

func (c *collecting) Put(d cell.Digest, b []byte) error {
	c.put(b)
	return c.Store.Put(d, b)
}

// forging changes one object, as if store and digest agreed.
type forging struct {
	memory.Store
	d cell.Digest
	b []byte
}

func (f forging) Get(d cell.Digest) ([]byte, error) {
	if d == f.d {
		return f.b, nil
	}
	return f.Store.Get(d)
}

// Each object of an image is damaged in turn, then missing: nothing is loaded,
// and the error names the object, and of a leaf or chunk the file and where.
// What shares it fails, too, and what doesn't is as it was.
func TestD47DamagedOrMissingPart(t *testing.T) {
	dir := t.TempDir()
	st, err := disk.Open(dir)
	must(t, err)
	defer func() { st.Close() }()
	b := pages(1, 120)
	c := content{"pages.img": b}
	root, _ := save(t, st, c)
	fork := content{"pages.img": touch(b, 1, 1)}
	child, _ := save(t, st, fork, root)
	shared := reach(t, st, child)
	other := content{"pages.img": pages(2, 20)}
	alone, _ := save(t, st, other)
	for d, x := range objects(t, st, root) {
		words := []string{d.Short(), "pages.img", "at offset "}
		if d == root {
			words = words[:1]
		} else if !bytes.HasPrefix(x, []byte("pando ")) {
			words = append(words, "chunk")
		}
		pack, err := os.ReadFile(filepath.Join(dir, "000001.pack"))
		must(t, err)
		at := int64(bytes.Index(pack, x))
		f, err := os.OpenFile(filepath.Join(dir, "000001.pack"), os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteAt([]byte{x[len(x)/2] ^ 1}, at+int64(len(x)/2))
		must(t, err)
		_, err = f.WriteAt(x, at)
		must(t, err)
		must(t, st.Put(d, x))
		pack, err = os.ReadFile(filepath.Join(dir, "000001.pack"))
		must(t, err)
		at = int64(bytes.LastIndex(pack, x))
		_, err = f.WriteAt([]byte{x[len(x)/2] ^ 1}, at+int64(len(x)/2))
		must(t, err)
		refuses(t, st, root, append(words, "damaged")...)
		refuses(t, st, root, append(words, "missing")...) // the store has forgotten it
		if shared[d] {
			refuses(t, st, child, d.Short())
		} else {
			loads(t, st, child, fork)
		}
		loads(t, st, alone, other)
		if d != root && bytes.HasPrefix(x, []byte("pando ")) {
			if err := memory.Reach(st, root, map[cell.Digest]bool{}); cell.KindOf(err) != cell.Corrupt {
				t.Errorf("what a collection keeps: %v", err)
			}
		}
		_, err = f.WriteAt(x, at)
		must(t, errors.Join(err, f.Close()))
		must(t, st.Put(d, x))
		loads(t, st, root, c)
	}
}

// The offset of the error is that of the chunk.
func TestD47OffsetOfMissingPart(t *testing.T) {
	st := mem.New()
	b := slices.Concat(pages(1, 500), make([]byte, 500*page), []byte("the last"))
	root, _ := save(t, st, content{"pages.img": b})
	last, _ := save(t, mem.New(), content{"x": []byte("the last")})
	other := mem.New()
	save(t, other, content{"x": []byte("the last")})
	var gone cell.Digest
	for d, x := range objects(t, other, last) {
		if !bytes.HasPrefix(x, []byte("pando ")) {
			gone = d
		}
	}
	st.Keep(func(d cell.Digest) bool { return d != gone })
	where := []string{"chunk " + gone.Short(), fmt.Sprintf("pages.img at offset %d is missing", 1000*page)}
	refuses(t, st, root, where...)
}

// Objects that have their digests and are not what the image says, as a pack
// from elsewhere may have them.
func TestD47ForgedPart(t *testing.T) {
	st := mem.New()
	b := pages(1, 120)
	root, _ := save(t, st, content{"pages.img": b})
	var chunks [][]byte
	all := objects(t, st, root)
	for _, x := range all {
		if !bytes.HasPrefix(x, []byte("pando ")) {
			chunks = append(chunks, x)
		}
	}
	for d, x := range all {
		forged := [][]byte{nil, x[:len(x)-1], append(bytes.Clone(x), 0)}
		if !bytes.HasPrefix(x, []byte("pando ")) {
			forged = append(forged, slices.Concat(x, x), slices.Concat(x, chunks[0]))
		}
		for i, y := range forged {
			dir := t.TempDir()
			err := memory.LoadDir(context.Background(), forging{st, d, y}, root, filepath.Join(dir, "image"))
			if cell.KindOf(err) != cell.Corrupt {
				t.Errorf("forgery %d of %.12q: %v", i, x, err)
			}
		}
	}
}

// A chunk that would decompress to far more than its leaf says is not.
func TestBomb(t *testing.T) {
	enc, err := zstd.NewWriter(nil, zstd.WithWindowSize(64<<10), zstd.WithSingleSegment(false))
	must(t, err)
	bomb := enc.EncodeAll(make([]byte, 256<<20), nil)
	enc.Close()
	st := mem.New()
	root, _ := save(t, st, content{"pages.img": pages(1, 2)})
	for d, x := range objects(t, st, root) {
		if bytes.HasPrefix(x, []byte("pando ")) {
			continue
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		refuses(t, forging{st, d, bomb}, root, "chunk "+d.Short())
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 32<<20 {
			t.Errorf("%d bytes were allocated for it", n)
		}
	}
}

// A cancelled Save stops and returns the cause.
func TestInterrupted(t *testing.T) {
	st := mem.New()
	c := image(pages(1, 2000))
	root, _ := save(t, st, c)
	why := errors.New("the caller hung up")
	for _, after := range []int{0, 1, 5} {
		ctx, cancel := context.WithCancelCause(context.Background())
		n := 0
		count := func() {
			if n++; n > after {
				cancel(why)
			}
		}
		if after == 0 {
			cancel(why)
		}
		dir := filepath.Join(t.TempDir(), "image")
		err := memory.LoadDir(ctx, &watching{Store: st, get: count}, root, dir)
		if cell.KindOf(err) != cell.Interrupted || !errors.Is(err, why) {
			t.Errorf("load: %v", err)
		}
		for _, name := range []string{dir, dir + ".partial"} {
			if _, err := os.Lstat(name); err == nil {
				t.Errorf("%s was left", name)
			}
		}
		ctx, cancel = context.WithCancelCause(context.Background())
		if after == 0 {
			cancel(why)
		}
		var puts atomic.Int64
		stop := func([]byte) {
			if puts.Add(1) > int64(after) {
				cancel(why)
			}
		}
		if _, _, err = memory.Save(ctx, &collecting{mem.New(), stop}, c.files()); cell.KindOf(err) != cell.Interrupted || !errors.Is(err, why) {
			t.Errorf("save: %v", err)
		}
		cancel(nil)
	}
}

// What can be no file of an image is refused before anything is written.
func TestWrongFiles(t *testing.T) {
	st := &failing{Store: mem.New()}
	b := bytes.NewReader(nil)
	for _, fs := range [][]memory.File{
		{{Name: "", From: b}}, {{Name: "..", From: b}}, {{Name: "a/b", From: b}},
		{{Name: "a", From: b}, {Name: "a", From: b}}, {{Name: "a", Size: -1, From: b}},
	} {
		if _, _, err := memory.Save(context.Background(), st, fs); cell.KindOf(err) != cell.Invalid {
			t.Errorf("%+v: %v", fs, err)
		}
	}
	_, _, err := memory.Save(context.Background(), mem.New(), []memory.File{{Name: "short", Size: 1, From: b}})
	if err == nil || !strings.Contains(err.Error(), "short") {
		t.Errorf("a file that ends early: %v", err)
	}
	dir := t.TempDir()
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "link")))
	if _, _, err := memory.SaveDir(context.Background(), mem.New(), dir); cell.KindOf(err) != cell.Invalid {
		t.Errorf("a link: %v", err)
	}
}

// A file of a folder may be a link to one in memory.
func TestLinkIntoMemory(t *testing.T) {
	fd, err := unix.MemfdCreate("memory", unix.MFD_CLOEXEC)
	must(t, err)
	f := os.NewFile(uintptr(fd), "memory")
	defer f.Close()
	must(t, f.Truncate(64<<20))
	_, err = f.WriteAt([]byte("page"), 32<<20)
	must(t, err)
	linked, plain := t.TempDir(), t.TempDir()
	must(t, os.Symlink(fmt.Sprintf("/proc/self/fd/%d", fd), filepath.Join(linked, "m")))
	to, err := os.Create(filepath.Join(plain, "m"))
	must(t, err)
	must(t, to.Truncate(64<<20))
	_, err = to.WriteAt([]byte("page"), 32<<20)
	must(t, err)
	must(t, to.Close())
	want, _, err := memory.SaveDir(context.Background(), mem.New(), plain)
	must(t, err)
	got, stats, err := memory.SaveDir(context.Background(), mem.New(), linked)
	if must(t, err); got != want || stats.Zeros < 63<<20 {
		t.Errorf("it is %v (%+v), a file with the same is %v", got, stats, want)
	}
}
