package gitdir

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/parse"
	"github.com/pando-dev/pando/internal/reexec"
)

func TestMain(m *testing.M) {
	if r, ok := reexec.Role(os.Args[0]); ok && r == parse.Role {
		if err := parse.Main(map[string]parse.Func{IndexJob: ParseIndexJob}); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func readIndex(b []byte, hashLen int) (*Set, error) {
	return ReadIndex(bytes.NewReader(b), int64(len(b)), hashLen)
}

// bombIndex makes an index of version 4 with long names that differ in their last bytes.
func bombIndex(entries, name int) []byte {
	b := binary.BigEndian.AppendUint32([]byte("DIRC"), 4)
	b = binary.BigEndian.AppendUint32(b, uint32(entries))
	stat := make([]byte, indexStat+20+2)
	binary.BigEndian.PutUint32(stat[indexMode:], 0o100644)
	for i := range entries {
		b = append(b, stat...)
		if i == 0 {
			b = append(append(append(b, 0), strings.Repeat("d/", name/2)...), "00000000\x00"...)
		} else {
			b = append(append(b, 8), fmt.Sprintf("%08d\x00", i)...)
		}
	}
	return append(b, make([]byte, 20)...)
}

func TestX02IndexOfSharedPrefixes(t *testing.T) {
	for _, name := range []int{4000, 16000} { // 280 MB and 1.1 GB in full
		b := bombIndex(70_000, name)
		if len(b) > inPlace {
			t.Fatalf("%d bytes are not small", len(b))
		}
		boundtest.Allocates(t, len(b), func() {
			s, err := readIndex(b, 20)
			if err != nil || s.Len() != 70_000 || len(s.names) > 2*len(b) {
				t.Fatal(err)
			}
			if p := strings.Repeat("d/", name/2); !s.Has(p+"00069999") || s.Has(p+"00070000") || !s.Has("d/d") {
				t.Error("Has")
			}
		})
	}
	for _, b := range [][]byte{bombIndex(2, 2*maxName), bombIndex(1, maxName)} {
		_, err := readIndex(b, 20)
		if e := bound.Exceeded(err); e == nil || cell.KindOf(err) != cell.TooLarge || !strings.Contains(err.Error(), "a name in git's index: it has more than 16384 bytes") {
			t.Errorf("a long name: %v", err)
		}
	}
}

func TestX02SetIsWhatItWasMadeOf(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var paths []string
		for range rnd.IntN(300) {
			p := strings.Repeat("long", rnd.IntN(40)) + "x"
			for range rnd.IntN(4) {
				p += "/" + string(rune('a'+rnd.IntN(4)))
			}
			paths = append(paths, p)
		}
		slices.Sort(paths)
		paths = slices.Compact(paths)
		s := NewSet(paths...)
		again, err := decodeSet(s.names)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []*Set{s, again} {
			if got := slices.Collect(s.All()); !slices.Equal(got, paths) || s.Len() != len(paths) {
				t.Fatalf("%q\n%q", got, paths)
			}
			for _, p := range paths {
				if dir := filepath.Dir(p); !s.Has(p) || dir != "." && !s.Has(dir) || s.Has(p+"0") || s.Has(p[:len(p)-1]) && len(p) > 1 && p[len(p)-2] == '/' {
					t.Fatalf("%q", p)
				}
			}
		}
	}
}

func FuzzDecodeSet(f *testing.F) {
	f.Add(NewSet("a", "a/b", "c").names)
	f.Fuzz(func(t *testing.T, b []byte) {
		boundtest.Allocates(t, len(b), func() {
			if s, err := decodeSet(b); err == nil {
				s.Has("a/b")
			}
		})
	})
}

func TestX02LargeIndexIsParsedOutside(t *testing.T) {
	top := t.TempDir()
	gitOracle(t, top, "", "init", "-q")
	b := bombIndex(200_000, 4000)
	if len(b) <= inPlace {
		t.Fatal("not large")
	}
	if err := os.WriteFile(filepath.Join(top, ".git/index"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Tracked(t.Context(), top, nil); cell.KindOf(err) != cell.TooLarge {
		t.Errorf("without a parser: %v", err)
	}
	var s *Set
	boundtest.Allocates(t, len(b), func() {
		var err error
		if s, err = Tracked(t.Context(), top, parse.New(durable.Disk(t.TempDir()), "unreadable.json")); err != nil {
			t.Fatal(err)
		}
	})
	if s.Len() != 200_000 || !s.Has("d/d") {
		t.Errorf("%d paths", s.Len())
	}
	bad := slices.Clone(b)
	copy(bad, "CRID")
	if err := os.WriteFile(filepath.Join(top, ".git/index"), bad, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Tracked(t.Context(), top, parse.New(durable.Disk(t.TempDir()), "unreadable.json")); cell.KindOf(err) != cell.Corrupt {
		t.Errorf("a damaged index: %v", err)
	}
}

// Rules are counted before they are kept, and matching before it goes on.
func TestX02RulesAreBounded(t *testing.T) {
	deep := strings.Repeat("d/", 2000)
	for name, c := range map[string]struct{ rules, path, word string }{
		"patterns": {strings.Repeat("?", 1<<20), "f", "bytes of rules"},
		"rules":    {strings.Repeat("a*b\n", 1<<18), "f", "bytes of rules"},
	} {
		t.Run(name, func(t *testing.T) {
			rules := []byte(c.rules)
			ig := NewIgnore(func(p string) ([]byte, error) { return rules, nil })
			boundtest.Allocates(t, maxRules/16, func() { ig.verdict(deep+c.path, false) }) // limited by the number of bytes of rules
			if err := ig.Err(); cell.KindOf(err) != cell.TooLarge || !strings.Contains(err.Error(), c.word) {
				t.Errorf("%v", err)
			}
		})
	}
	ig := NewIgnore(func(string) ([]byte, error) { return nil, fs.ErrNotExist }, IgnoreFile{"x", []byte(strings.Repeat("*a*b*c\n", 1000))})
	ig.steps = bound.NewBudget("git's ignore rules", 100_000, "steps of matching")
	for range 100 {
		ig.Ignored(strings.Repeat("ab", 2000), false)
	}
	if err := ig.Err(); bound.Exceeded(err) == nil || bound.Exceeded(err).Unit != "steps of matching" {
		t.Errorf("steps: %v", err)
	}
}
