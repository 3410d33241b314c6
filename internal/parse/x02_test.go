package parse

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/reexec"
)

func TestMain(m *testing.M) {
	if r, ok := reexec.Role(os.Args[0]); ok && r == Role {
		if err := Main(map[string]Func{"test": parseTest}); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// parseTest does what its input says.
func parseTest(r io.Reader, job Job) ([]byte, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	switch what := string(b); {
	case what == "refuse":
		return nil, bound.Exceed("the input", 3, "bytes")
	case what == "die":
		os.Exit(7)
	case what == "memory":
		for all := []byte{}; ; {
			all = append(all, make([]byte, 16<<20)...)
			for i := 0; i < len(all); i += 4096 {
				all[i] = 1
			}
		}
	case what == "time": // as the kernel ends it at its limit
		unix.Kill(os.Getpid(), unix.SIGXCPU)
		select {}
	case what == "panic":
		var none []byte
		return none[:job.Size], nil
	case what == "forever":
		select {}
	}
	return b, nil
}

func do(p *Parser, ctx context.Context, in string) ([]byte, error) {
	return p.Do(ctx, "the input", cell.Sum([]byte(in)), Job{Name: "test", Size: int64(len(in))}, strings.NewReader(in))
}

func TestX02ParserAnswers(t *testing.T) {
	p := New(durable.Disk(t.TempDir()), "unreadable.json")
	big := strings.Repeat("x", 20<<20)
	for range 3 {
		if b, err := do(p, t.Context(), big); string(b) != big || err != nil {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
		_, err := do(p, t.Context(), "refuse")
		if e := bound.Exceeded(err); cell.KindOf(err) != cell.TooLarge || e == nil || e.Limit != 3 || err.Error() != "cannot read the input: it has more than 3 bytes" {
			t.Fatalf("%v", err)
		}
	}
	if _, err := do(nil, t.Context(), "x"); cell.KindOf(err) != cell.TooLarge {
		t.Errorf("without a parser: %v", err)
	}
	bad := errors.New("bad input")
	_, err := p.Do(t.Context(), "the input", cell.Sum([]byte("y")), Job{Name: "test", Size: 1}, io.MultiReader(strings.NewReader(""), errReader{bad}))
	if !errors.Is(err, bad) {
		t.Errorf("input that can't be read: %v", err)
	}
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }

// What ended two processes is not given to a third, by a later parser neither.
func TestX02NotTriedAThirdTime(t *testing.T) {
	for in, word := range map[string]string{"die": "exit status 7", "memory": "limit on memory", "time": "limit on processor time", "panic": "the parser panicked"} {
		t.Run(in, func(t *testing.T) {
			dir := t.TempDir()
			for range attempts {
				_, err := do(New(durable.Disk(dir), "unreadable.json"), t.Context(), in)
				if cell.KindOf(err) != cell.TooLarge || !strings.Contains(err.Error(), word) {
					t.Fatalf("%v", err)
				}
			}
			p := New(durable.Disk(dir), "unreadable.json")
			p.program = "/nonexistent"
			_, err := do(p, t.Context(), in)
			if cell.KindOf(err) != cell.TooLarge || !strings.Contains(err.Error(), "ended the process that parses it 2 times and is not tried again") || cell.HintOf(err) == "" {
				t.Fatalf("the third time: %v", err)
			}
			if _, err := do(New(durable.Disk(dir), "unreadable.json"), t.Context(), "other"); err != nil {
				t.Errorf("another input: %v", err)
			}
		})
	}
}

// A daemon that dies during an attempt has recorded it before.
func TestX02AttemptIsRecordedBefore(t *testing.T) {
	dir := t.TempDir()
	key := cell.Sum([]byte("x"))
	for range attempts {
		if err := New(durable.Disk(dir), "unreadable.json").begin("the input", key); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := do(New(durable.Disk(dir), "unreadable.json"), t.Context(), "x"); cell.KindOf(err) != cell.TooLarge {
		t.Errorf("%v", err)
	}
}

// What its caller stopped is no attempt.
func TestX02StoppedIsNoAttempt(t *testing.T) {
	p := New(durable.Disk(t.TempDir()), "unreadable.json")
	for range attempts + 1 {
		ctx, cancel := context.WithCancel(t.Context())
		r, w := io.Pipe()
		go func() {
			w.Write([]byte("forever")) // returns when the copy has taken it
			w.Close()
			cancel()
		}()
		_, err := p.Do(ctx, "the input", cell.Sum([]byte("forever")), Job{Name: "test", Size: 8}, r)
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("%v", err)
		}
	}
}

func TestX02RecordsAreFew(t *testing.T) {
	p := New(durable.Disk(t.TempDir()), "unreadable.json")
	if err := p.change(func(all map[string]record) error {
		for i := range maxRecords + 5 {
			all[cell.Sum([]byte{byte(i), byte(i >> 8)}).String()] = record{Tried: 1}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	key := cell.Sum([]byte("new"))
	if err := p.begin("new", key); err != nil {
		t.Fatal(err)
	}
	p.change(func(all map[string]record) error {
		if len(all) != maxRecords || all[key.String()].Tried != 1 {
			t.Errorf("%d records", len(all))
		}
		return nil
	})
}
