package credential

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/testenv"
)

func TestScannerLooksIntoWhatIsCompressed(t *testing.T) {
	text := strings.Repeat("some text before ", 100) + sample + strings.Repeat(" and after", 100)
	var gz, zl, zp, tgz bytes.Buffer
	w := gzip.NewWriter(&gz)
	w.Write([]byte(text))
	w.Close()
	z := zlib.NewWriter(&zl)
	z.Write([]byte(text))
	z.Close()
	a := zip.NewWriter(&zp)
	for _, name := range []string{"first", "second"} {
		f, _ := a.Create(name)
		f.Write([]byte(map[string]string{"first": "nothing here", "second": text}[name]))
	}
	a.Close()
	tz := gzip.NewWriter(&tgz)
	tw := tar.NewWriter(tz)
	tw.WriteHeader(&tar.Header{Name: "x", Mode: 0o600, Size: int64(len(text))})
	tw.Write([]byte(text))
	tw.Close()
	tz.Close()
	s := NewScanner(map[string]Secret{"it": NewSecret(sample)})
	for name, b := range map[string][]byte{"gzip": gz.Bytes(), "zlib": zl.Bytes(), "zip": zp.Bytes(), "tar.gz": tgz.Bytes(), "plain": []byte(text)} {
		found, gap, err := s.Read(context.Background(), bytes.NewReader(b), budget())
		if err != nil || gap != "" || len(found) != 1 || found[0].Credential != "it" || strings.HasSuffix(found[0].Encoding, "compressed") == (name == "plain") {
			t.Errorf("%s: %v, %q, %v", name, found, gap, err)
		}
	}
	for name, x := range map[string]struct {
		text string
		gap  bool
	}{
		"zstd": {"\x28\xb5\x2f\xfd....", true}, "xz": {"\xfd7zXZ\x00...", true}, "half of it": {gz.String()[:30], true},
		"like zlib": {"x\x9cnot at all", false}, "empty": {"", false}, "one byte": {"x", false}, "zip without more": {"PK\x03\x04", true}, "pack": {"PACK\x00\x00\x00\x02\x00\x00\x00\x09", true},
	} {
		found, gap, err := s.Read(context.Background(), strings.NewReader(x.text), budget())
		if err != nil || (gap != "") != x.gap || len(found) != 0 {
			t.Errorf("%s: %v, %q, %v", name, found, gap, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := s.Read(ctx, strings.NewReader(text), budget()); err == nil {
		t.Error("it reads on without a reader")
	}
}

func budget() *int64 {
	n := int64(1 << 20)
	return &n
}

func TestScannerUnpacksNoMoreThanItMay(t *testing.T) {
	var gz bytes.Buffer
	w := gzip.NewWriter(&gz)
	w.Write(make([]byte, 8<<20))
	w.Write([]byte(sample))
	w.Close()
	left := budget()
	found, gap, err := NewScanner(map[string]Secret{"it": NewSecret(sample)}).Read(context.Background(), &gz, left)
	if err != nil || gap == "" || len(found) != 0 || *left < 0 || *left > 64<<10 {
		t.Errorf("%v, %q, %v; %d bytes are left", found, gap, err, *left)
	}
}

func TestScannerLooksIntoGit(t *testing.T) {
	git := testenv.Program(t, "git")
	dir := t.TempDir()
	run := func(args ...string) {
		cmd := exec.Command(git, args...)
		cmd.Dir = dir
		cmd.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@t", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@t"}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	run("init", "-q")
	var filler strings.Builder
	for range 200 {
		filler.WriteString(string(rune('a'+rand.IntN(26))) + " line\n")
	}
	for i, text := range []string{"nothing\n", "key = " + sample + "\n", "gone again\n"} {
		os.WriteFile(filepath.Join(dir, "f"), []byte(filler.String()+text), 0o600)
		run("add", "f")
		run("commit", "-q", "-m", strings.Repeat("x", i+1))
	}
	s := NewScanner(map[string]Secret{"it": NewSecret(sample)})
	look := func(pattern string) (n int) {
		files, _ := filepath.Glob(filepath.Join(dir, ".git", pattern))
		for _, name := range files {
			f, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			found, gap, err := s.Read(context.Background(), f, budget())
			f.Close()
			if err != nil || gap != "" {
				t.Errorf("%s: %q, %v", name, gap, err)
			}
			n += len(found)
		}
		return n
	}
	if n := look("objects/??/*"); n != 1 {
		t.Errorf("%d objects have it", n)
	}
	run("repack", "-adq")
	if n := look("objects/pack/*.pack"); n != 1 {
		t.Errorf("%d packs have it", n)
	}
	if n := look("objects/??/*"); n != 0 {
		t.Errorf("%d objects have it still", n)
	}
}
