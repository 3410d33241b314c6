package receipt

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
)

// record is a receipt of the usual size: about 2 KB of statement.
func record(i int) Request {
	files := map[string]cell.Digest{}
	for _, n := range []string{"manifest", "events", "stdout", "stderr", "patch"} {
		files[n] = cell.Sum(fmt.Append(nil, n, i))
	}
	return request(fmt.Sprintf("r-%016x/run", i), map[string]any{
		"run": fmt.Sprintf("r-%016x", i), "cell": "c-0123456789abcdef", "backend": "namespace", "exit_code": 0, "verdict": "accepted",
		"args": []string{"go", "test", "./..."}, "files": files,
		"before": map[string]any{"checkpoint": "k-1", "tree_digest": cell.Sum(nil), "content_digest": cell.Sum(nil)},
		"after":  map[string]any{"checkpoint": "k-2", "tree_digest": cell.Sum(nil), "content_digest": cell.Sum(nil)},
		"policy": cell.Sum(nil), "notes": strings.Repeat("x", 400),
	})
}

func BenchmarkLedgerAppend(b *testing.B) {
	for _, appenders := range []int{1, 16} {
		b.Run(fmt.Sprintf("appenders=%d", appenders), func(b *testing.B) {
			l := openLedger(b, durable.Disk(b.TempDir()), newKey(b))
			defer l.Close()
			reqs := make(chan Request, 4096)
			go func() {
				for i := 0; ; i++ {
					reqs <- record(i)
				}
			}()
			b.SetParallelism(appenders)
			if appenders == 1 {
				for b.Loop() {
					_, err := l.Append(ctx, <-reqs)
					must(b, err)
				}
				return
			}
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					_, err := l.Append(ctx, <-reqs)
					must(b, err)
				}
			})
		})
	}
}

// big is a ledger of 100,000 receipts, made when first needed.
var big struct {
	sync.Once
	dir string
}

func TestMain(m *testing.M) {
	code := m.Run()
	if big.dir != "" {
		os.RemoveAll(big.dir)
	}
	os.Exit(code)
}

func bigLedger(b *testing.B) (durable.FS, *Key) {
	k := fixedKey(b)
	big.Do(func() {
		dir, err := os.MkdirTemp("", "ledger")
		must(b, err)
		big.dir = dir
		l := openLedger(b, durable.Disk(dir), k)
		defer l.Close()
		for i := 0; i < 100_000; i += 1000 {
			var batch []*pending
			for j := range 1000 {
				p, err := prepare(record(i + j))
				must(b, err)
				batch = append(batch, p)
			}
			l.commit(batch)
			must(b, batch[0].err)
		}
	})
	return durable.Disk(big.dir), k
}

// cpu is the time that this process has had on all processors. On a machine
// that others use too it says more than the clock.
func cpu() time.Duration {
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkVerify100k(b *testing.B) {
	fsys, k := bigLedger(b)
	before := cpu()
	defer func() { b.ReportMetric((cpu()-before).Seconds()/float64(b.N), "cpu-s/op") }()
	for b.Loop() {
		r, err := VerifyLedger(fsys, k.Public(), nil)
		must(b, err)
		if !r.OK() || r.Receipts != 100_000 {
			b.Fatal(r.Problems)
		}
	}
}

func BenchmarkOpen100k(b *testing.B) {
	fsys, k := bigLedger(b)
	for b.Loop() {
		l := openLedger(b, fsys, k)
		l.Close()
	}
}

func BenchmarkBundleOfOne(b *testing.B) {
	fsys, k := bigLedger(b)
	l := openLedger(b, fsys, k)
	defer l.Close()
	b.Run("export", func(b *testing.B) {
		for b.Loop() {
			_, err := l.Export(54_321, 54_322, nil)
			must(b, err)
		}
	})
	x, err := l.Export(54_321, 54_322, nil)
	must(b, err)
	b.Run("verify", func(b *testing.B) {
		for b.Loop() {
			if !Verify(x, k.Public(), nil).OK() {
				b.Fatal("not verified")
			}
		}
	})
}

func BenchmarkEmit(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "events"))
	must(b, err)
	defer f.Close()
	w := NewEventWriter(f, StartChain(runID))
	fields := map[string]string{"host": "example.org", "rule": "allow-2"}
	for b.Loop() {
		must(b, w.Emit("net", fields))
	}
}

func BenchmarkRedact(b *testing.B) {
	r := redactor(b, "hunter2-hunter2", nasty, strings.Repeat("k", 64))
	for name, text := range map[string]string{
		"log":     strings.Repeat("2024-01-02 12:34:56 INFO request served path=/a/b status=200 in 3ms\n", 1000),
		"colours": strings.Repeat("\x1b[32mok\x1b[0m internal/cell 0.01s \"quoted \\\"text\\\"\" a%20b\n", 1000),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if bytes.Contains([]byte(r.String(text)), []byte(Redacted)) {
					b.Fatal("redacted")
				}
			}
		})
	}
}

// The numbers of each pair of sizes should be ten times apart.
func BenchmarkRedactHostile(b *testing.B) {
	r := redactor(b, strings.Repeat("a", 2000)+"b", nasty)
	for _, name := range slices.Sorted(maps.Keys(hostile)) {
		for _, size := range []int{20_000, 200_000} {
			text := strings.Repeat(hostile[name], size/len(hostile[name]))
			b.Run(fmt.Sprintf("%s/%d", strings.ReplaceAll(name, " ", "-"), size), func(b *testing.B) {
				for b.Loop() {
					_ = r.String(text)
				}
			})
		}
	}
}
