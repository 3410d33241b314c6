package e2b

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/pando-dev/pando/api"
)

// archiveOf is an archive of files, each with its own name as its content; a name that
// ends with "/" is a directory, NAME=TARGET a hard link.
func archiveOf(t testing.TB, names ...string) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, n := range names {
		h := &tar.Header{Name: n, Mode: 0o644, Typeflag: tar.TypeReg, Size: int64(len(n))}
		name, target, link := strings.Cut(n, "=")
		switch {
		case link:
			h.Typeflag, h.Name, h.Linkname, h.Size = tar.TypeLink, name, target, 0
		case strings.HasSuffix(n, "/"):
			h.Typeflag, h.Size, h.Mode = tar.TypeDir, 0, 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			io.WriteString(w, n)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// recopied is what of an archive the cell is given for a source.
func recopied(src string, archive []byte) (out []byte, err error) {
	p := placed{at: map[string]string{}, src: path.Clean(src)}
	if err := p.read(tar.NewReader(bytes.NewReader(archive))); err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	c := &copied{names: p, mode: -1}
	for pass := 0; pass <= p.passes; pass++ {
		if err := c.write(tar.NewReader(bytes.NewReader(archive)), w, pass); err != nil {
			return nil, err
		}
	}
	return buf.Bytes(), w.Close()
}

func TestCopyPlacesFiles(t *testing.T) {
	t.Parallel()
	all := []string{"a.txt", "b.txt", "src/", "src/one.js", "src/deep/", "src/deep/two.js", "src/same=src/one.js", "src/again=src/one.js"}
	for _, x := range []struct {
		src  string
		want string // NAME:CONTENT
	}{
		{"a.txt", "a.txt:a.txt"},
		{"./b.txt", "b.txt:b.txt"},
		{"src", "again:src/one.js deep/: deep/two.js:src/deep/two.js one.js:src/one.js same:src/one.js"},
		{"src/deep/", "two.js:src/deep/two.js"},
		{"*.txt", "a.txt:a.txt b.txt:b.txt"},
		{"src/*.js", "one.js:src/one.js"},
		{"s*", "again:src/one.js deep/: deep/two.js:src/deep/two.js one.js:src/one.js same:src/one.js"},
		{"src/**/*.js", "two.js:src/deep/two.js"},
		{"none", ""},
	} {
		out, err := recopied(x.src, archiveOf(t, all...))
		if err != nil {
			t.Errorf("%s: %v", x.src, err)
			continue
		}
		var got []string
		for in := tar.NewReader(bytes.NewReader(out)); ; {
			h, err := in.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			content, _ := io.ReadAll(in)
			got = append(got, h.Name+":"+string(content))
		}
		slices.Sort(got)
		if s := strings.Join(got, " "); s != x.want {
			t.Errorf("%s is copied as %q, not %q", x.src, s, x.want)
		}
	}
	if _, err := recopied("src/same", archiveOf(t, all...)); err == nil {
		t.Error("a link to what is not copied is copied")
	}
}

func TestSplitterMakesLines(t *testing.T) {
	t.Parallel()
	var said []string
	var last tail
	l := &splitter{say: func(_, m string) { said = append(said, m) }, tail: &last}
	for _, s := range []string{"a", "b\r\nc\n\n", strings.Repeat("x", maxBuildLine+1), "y\nend"} {
		l.write([]byte(s))
	}
	if want := []string{"ab", "c", "", strings.Repeat("x", maxBuildLine), "xy"}; !slices.Equal(said, want) {
		t.Errorf("said %.40q", said)
	}
	l.end()
	for range 2 * failureLines {
		l.write([]byte("more\n"))
	}
	if len(last) != failureLines || said[5] != "end" {
		t.Errorf("%d lines are kept, and the last without an end is %q", len(last), said[5])
	}
}

func FuzzCopyArchive(f *testing.F) {
	f.Add("src", archiveOf(f, "src/", "src/a", "src/b=src/a"))
	f.Add("*", archiveOf(f, "../a", "/b", "c"))
	f.Fuzz(func(t *testing.T, src string, archive []byte) {
		if len(archive) > 64<<10 {
			return
		}
		out, err := recopied(src, archive)
		if err != nil {
			return
		}
		for in := tar.NewReader(bytes.NewReader(out)); ; {
			h, err := in.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatalf("what the cell is given is no archive: %v", err)
			}
			if h.Typeflag == tar.TypeLink {
				t.Fatalf("a link to %s", h.Linkname)
			}
		}
	})
}

// deaf is the connection of a command that has ended: what it said can be read, and nothing is taken.
type deaf struct{ io.Reader }

func (deaf) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// What a step said is in the log, also when it ended before its input could be closed.
func TestOutputOfWhatHasEnded(t *testing.T) {
	var sent []byte
	for _, f := range []api.Frame{api.Output(api.FrameStdout, 0, []byte("said\nand ")), api.Output(api.FrameStderr, 0, []byte("warned\n")), api.Output(api.FrameStdout, 9, []byte("more")), {Type: api.FrameExit}} {
		sent = api.AppendFrame(sent, f)
	}
	var said []string
	var last tail
	say := func(_, m string) { said = append(said, m) }
	listen(deaf{bytes.NewReader(sent)}, &splitter{say: say, tail: &last}, &splitter{say: say, tail: &last})
	if want := []string{"said", "warned", "and more"}; !slices.Equal(said, want) {
		t.Errorf("the log is %q, not %q", said, want)
	}
}
