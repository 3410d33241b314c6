package dockerfile

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/oci"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// bench builds images without cells: what a RUN changes is what its command says, as "+path text" and "-path".
type bench struct {
	testing.TB
	store   *oci.Store
	base    oci.Image
	context wt.Model
	ran     []string // commands and where they ran
	failing string   // a command that fails
	plan    bool
}

func newBench(t testing.TB, context wt.Model) *bench {
	t.Helper()
	store, err := oci.OpenStore(t.TempDir(), false, "test")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{TB: t, store: store, context: context}
	b.base, err = store.Derive(t.Context(), nil, oci.Image{ID: cell.Sum([]byte("base")), Env: []string{"PATH=/bin", "BASE=1"}, Workdir: "/"}, func(w *tar.Writer) error {
		return errors.Join(
			put(w, "bin/sh", "shell", 0o755), put(w, "etc/passwd", "root:x:0:0::/root:/bin/sh\nweb:x:33:44::/:/bin/sh\n", 0o644), put(w, "etc/group", "www:x:55:\n", 0o644),
			put(w, "data/old", "old", 0o644), put(w, "entry", "top", 0o644),
			w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "current", Linkname: "data"}))
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func put(w *tar.Writer, name, text string, mode int64) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: mode}); err != nil {
		return err
	}
	_, err := io.WriteString(w, text)
	return err
}

func (b *bench) build(text, stage string) (oci.Image, error) {
	b.Helper()
	b.ran = nil
	f, err := Parse([]byte(text))
	if err != nil {
		return oci.Image{}, err
	}
	return f.Build(b.Context(), Config{
		Images: b.store, Name: "dockerfile:/d", File: "Dockerfile",
		Image: func(_ context.Context, ref string) (oci.Image, error) {
			if ref != "base" {
				return oci.Image{}, cell.Errorf(cell.NotFound, "test", "", "no image %s", ref)
			}
			return b.base, nil
		},
		Context: func(context.Context) (Context, error) {
			return Context{b.context.Side(b, nil), []string{"hidden"}}, nil
		},
		Plan: b.plan,
		Run: func(_ context.Context, on *oci.Image, r *Run, take func(string, func(*tar.Writer) error) error) error {
			b.ran = append(b.ran, r.Workdir+": "+strings.Join(r.Command, " "))
			last := r.Command[len(r.Command)-1]
			if last == b.failing {
				return cell.Errorf(cell.Invalid, "test", "", "it failed")
			}
			return take("r-1", func(w *tar.Writer) error {
				for line := range strings.Lines(last) {
					line = strings.TrimSpace(line)
					if name, text, ok := strings.Cut(strings.TrimPrefix(line, "+"), " "); ok && line[0] == '+' {
						if text == "$ENV" {
							text = strings.Join(r.Env, ",")
						}
						if err := put(w, name, text, 0o644); err != nil {
							return err
						}
					} else if name, ok := strings.CutPrefix(line, "-"); ok {
						if err := put(w, filepath.Join(filepath.Dir(name), ".wh."+filepath.Base(name)), "", 0); err != nil {
							return err
						}
					}
				}
				return nil
			})
		},
		Report: func(int, int, string) {},
	}, stage)
}

// list is what an image adds to the base, and what it lacks of it, as "path mode content".
func (b *bench) list(img oci.Image) (out []string) {
	b.Helper()
	all := func(root string) map[string]string {
		found := map[string]string{}
		err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err != nil || p == root {
				return err
			}
			name := strings.TrimPrefix(p, root+"/")
			st, err := d.Info()
			if err != nil {
				return err
			}
			switch st.Mode().Type() {
			case fs.ModeDir:
				found[name] = fmt.Sprintf("%s/ %o", name, st.Mode().Perm())
			case fs.ModeSymlink:
				to, _ := os.Readlink(p)
				found[name] = name + " -> " + to
			default:
				text, _ := os.ReadFile(p)
				found[name] = fmt.Sprintf("%s %o %s", name, st.Mode().Perm(), text)
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
		return found
	}
	was, is := all(b.base.Root), all(img.Root)
	for name, what := range is {
		if was[name] != what {
			out = append(out, what)
		}
	}
	for name := range was {
		if is[name] == "" {
			out = append(out, "gone "+name)
		}
	}
	slices.Sort(out)
	return out
}

func archive(t *testing.T, names ...string) wt.Thing {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, n := range names {
		if err := errors.Join(w.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "as of git archive"}}), put(w, n, "from the archive", 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return wt.Plain(b.String())
}

// What a Dockerfile says is what is in the image.
func TestBuild(t *testing.T) {
	context := wt.Model{
		"a": wt.Plain("A"), "b.txt": wt.Plain("B"), "run.sh": wt.Script("go"), "dir/x": wt.Plain("X"), "dir/deep/y": wt.Plain("Y"), "link": wt.Link("dir"), "out": wt.Link("/etc"),
		".wh.a": wt.Plain("x"), "hidden/f": wt.Plain("x"), "t.xz": wt.Plain("\xfd7zXZ\x00"), "to/into": wt.Link("data"), "passwd": wt.Plain("new:x:7:7::/:/bin/sh\n"),
		"left/deep/me": wt.Plain("no"), "left/me": wt.Plain("no"), "left/kept": wt.Plain("yes"), "a b": wt.Plain("space"), "t.tgz": archive(t, "in/one", "../two"),
		".dockerignore": wt.Plain("left\n!left/kept\n*.log\n"), "x.log": wt.Plain("log"),
	}
	for name, c := range map[string]struct {
		text, stage string
		want        []string
		err         string
	}{
		"a file, named":                          {text: "COPY a /etc/new", want: []string{"etc/new 644 A"}},
		"a file, into a folder":                  {text: "COPY a /data", want: []string{"data/a 644 A"}},
		"into a link's folder":                   {text: "COPY a /current/", want: []string{"data/a 644 A"}},
		"a link, followed":                       {text: "COPY link /l", want: []string{"l/ 755", "l/deep/ 755", "l/deep/y 644 Y", "l/x 644 X"}},
		"a link out":                             {text: "COPY out /o", err: "line 3 of the Dockerfile: out is not in the context"},
		"out by name":                            {text: "COPY ../../etc/passwd /p", err: "etc/passwd is not in the context"},
		"a folder's content":                     {text: "COPY dir /data/", want: []string{"data/deep/ 755", "data/deep/y 644 Y", "data/x 644 X"}},
		"patterns":                               {text: "COPY *.txt run* /n/", want: []string{"n/ 755", "n/b.txt 644 B", "n/run.sh 755 go"}},
		"several to one":                         {text: "COPY a b.txt /n", err: "has several sources"},
		"a pattern to one":                       {text: "COPY d*/* /n", err: "matches 2 files"},
		"nothing":                                {text: "COPY nothing /n", err: "nothing is not in the context"},
		"no match":                               {text: "COPY *.none /n/", err: "nothing matches *.none"},
		"the JSON form":                          {text: `COPY ["a b", "/n/"]`, want: []string{"n/ 755", "n/a b 644 space"}},
		"ignored":                                {text: "COPY --exclude=.wh.a --exclude=t.xz --exclude=to --exclude=passwd . /n", want: []string{"n/ 755", "n/.dockerignore 644 left\n!left/kept\n*.log\n", "n/a 644 A", "n/a b 644 space", "n/b.txt 644 B", "n/dir/ 755", "n/dir/deep/ 755", "n/dir/deep/y 644 Y", "n/dir/x 644 X", "n/left/ 755", "n/left/kept 644 yes", "n/link -> dir", "n/out -> /etc", "n/run.sh 755 go", "n/t.tgz 644 " + string(context["t.tgz"].Text)}},
		"ignored, by name":                       {text: "COPY x.log /n", err: "x.log is not in the context"},
		"excluded":                               {text: "COPY --exclude=deep dir /n", want: []string{"n/ 755", "n/x 644 X"}},
		"a mode":                                 {text: "COPY --chmod=750 a /n", want: []string{"n 750 A"}},
		"a mode in words":                        {text: "COPY --chmod=u+x a /n", err: "--chmod=u+x is not supported"},
		"a user":                                 {text: "COPY --chown=web:www a /n", want: []string{"n 644 A"}},
		"no such user":                           {text: "COPY --chown=nobody a /n", err: "the image's /etc/passwd has no nobody"},
		"an archive, copied":                     {text: "COPY t.tgz /n", want: []string{"n 644 " + context["t.tgz"].Text}},
		"an archive, unpacked":                   {text: "ADD t.tgz /n", want: []string{"n/ 755", "n/in/ 755", "n/in/one 600 from the archive", "n/two 600 from the archive"}},
		"at the top":                             {text: "COPY a entry /", err: "entry is not in the context"},
		"over a file":                            {text: "COPY a /entry", want: []string{"entry 644 A"}},
		"a folder over a file":                   {text: "COPY dir /entry", want: []string{"entry/ 755", "entry/deep/ 755", "entry/deep/y 644 Y", "entry/x 644 X"}},
		"a heredoc":                              {text: "ARG V=1\nCOPY <<one <<\"two\" /n/\nv=$V\none\nv=$V\ntwo", want: []string{"n/ 755", "n/one 644 v=1\n", "n/two 644 v=$V\n"}},
		"a working directory":                    {text: "WORKDIR /w\nWORKDIR sub\nCOPY a .", want: []string{"w/ 755", "w/sub/ 755", "w/sub/a 644 A"}},
		"variables":                              {text: "ARG A=a\nENV B=${A:-z}x C=$BASE\nRUN +e $ENV", want: []string{"e 644 A=a,B=ax,BASE=1,C=1,PATH=/bin"}},
		"a variable of the top":                  {text: "ARG TOP\nRUN +e $ENV", want: []string{"e 644 BASE=1,PATH=/bin,TOP=t"}},
		"ENV hides ARG":                          {text: "ARG A=1\nENV A=2\nARG A=3\nRUN +e $ENV", want: []string{"e 644 A=2,BASE=1,PATH=/bin"}},
		"what a RUN removes":                     {text: "RUN -data/old", want: []string{"gone data/old"}},
		"and what it makes anew":                 {text: "RUN -data\nCOPY a /data/", want: []string{"data/a 644 A", "gone data/old"}},
		"of another stage":                       {text: "RUN +made 1\nFROM base\nCOPY --from=0 /made /data/x", want: []string{"data/x 644 1"}},
		"of a named stage":                       {text: "RUN +made 1\nFROM base AS Two\nRUN +two 2\nFROM two\nCOPY --from=TWO /two /x", want: []string{"two 644 2", "x 644 2"}},
		"up to a stage":                          {text: "RUN +one 1\nFROM base AS mid\nRUN +two 2\nFROM base\nRUN +three 3", stage: "mid", want: []string{"two 644 2"}},
		"no such stage":                          {text: "RUN +one 1", stage: "mid", err: "the Dockerfile has none of that name"},
		"of an image before a stage of its name": {text: "COPY --from=base /etc/group /g\nFROM base AS later\nFROM base AS base2\nRUN +x 1", want: []string{"x 644 1"}},
		"an archive's mode":                      {text: "ADD --chmod=700 t.tgz /", err: "--chmod of an archive that is unpacked is not supported"},
		"of an image":                            {text: "COPY --from=base /etc/group /g", want: []string{"g 644 www:x:55:\n"}},
		"not in a stage":                         {text: "FROM base\nCOPY --from=0 /nothing /g", err: "nothing is not in the stage it names"},
		"nothing but settings":                   {text: "ENV A=1", want: nil},
		"a name that would hide":                 {text: "COPY .wh.a /n/", err: "in an image such a name hides another"},
		"hidden by the policy":                   {text: "COPY hidden /n/", err: "hidden is not in the context"},
		"an archive at the top":                  {text: "ADD t.tgz /", want: []string{"in/ 755", "in/one 600 from the archive", "two 600 from the archive"}},
		"an archive of xz":                       {text: "ADD t.xz /", err: "archives of xz are not supported"},
		"through what came before":               {text: "COPY to /\nCOPY a /into/", want: []string{"data/a 644 A", "into -> data"}},
		"accounts that came before":              {text: "COPY passwd /etc/passwd\nCOPY --chown=new a /n", want: []string{"etc/passwd 644 new:x:7:7::/:/bin/sh\n", "n 644 A"}},
		"of a stage that goes on":                {text: "ARG A=1\nSHELL [\"sh\"]\nFROM base AS x\nARG A=2\nFROM x\nRUN +e $ENV", want: []string{"e 644 A=2,BASE=1,PATH=/bin"}},
		"scratch":                                {text: "FROM scratch\nRUN true", err: "RUN needs an image with a shell"},
		"an empty image":                         {text: "FROM scratch", err: "its image has no files"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, context)
			img, err := b.build("ARG TOP=t\nFROM base\n"+c.text, c.stage)
			if c.err != "" || err != nil {
				if err == nil || c.err == "" || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("%v, want %q", err, c.err)
				}
				return
			}
			if got := b.list(img); !slices.Equal(got, c.want) {
				t.Errorf("there is\n%q\nwant\n%q", got, c.want)
			}
		})
	}
}

// What an image is told of commands is what the last stage says.
func TestSettings(t *testing.T) {
	b := newBench(t, nil)
	img, err := b.build("FROM base AS one\nENV A=1\nWORKDIR /w\nUSER web\nFROM one\nENV B=2 A=3\nCMD [\"x\"]", "")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(img.Env, []string{"PATH=/bin", "BASE=1", "A=3", "B=2"}) || img.Workdir != "/w" || img.User != "web" || img.Made.Ref != "dockerfile:/d" {
		t.Errorf("it is %+v", img)
	}
}

// A step is made again when what it was made from is another, and only then.
func TestStepsAreKept(t *testing.T) {
	b := newBench(t, wt.Model{"a": wt.Plain("A"), "b": wt.Plain("B")})
	ran := func(text string, want ...string) oci.Image {
		t.Helper()
		img, err := b.build(text, "")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(b.ran, want) {
			t.Errorf("%s\nran %q, want %q", text, b.ran, want)
		}
		return img
	}
	one, two := "/: /bin/sh -c +one 1", "/w: /bin/sh -c +two 2"
	text := "FROM base\nRUN +one 1\nCOPY a /w/\nWORKDIR /w\nRUN +two 2\n"
	first := ran(text, one, two)
	if again := ran(text); again.ID != first.ID {
		t.Errorf("the same twice is %s and %s", first.ID, again.ID)
	}
	if other := ran(text + "ENV LATER=1\n"); other.ID == first.ID || !slices.Contains(other.Env, "LATER=1") {
		t.Errorf("other settings are the same image: %+v", other)
	}
	ran("# a comment\nFROM base AS named\nRUN  +one 1\nCOPY a /w/\nWORKDIR /w\nRUN +two 2\n")
	ran(strings.Replace(text, "RUN +two", "ENV NEW=1\nRUN +two", 1), two)
	b.context["b"] = wt.Plain("other") // not copied
	ran(text)
	b.context["a"] = wt.Plain("other")
	if img := ran(text, two); b.list(img)[3] != "w/a 644 other" {
		t.Errorf("there is %q", b.list(img))
	}
	b.context["a"] = wt.Plain("A")
	ran(text)
	b.failing = "+three 3"
	if _, err := b.build(text+"RUN +three 3", ""); err == nil || !strings.Contains(err.Error(), "line 6 of the Dockerfile: it failed") {
		t.Errorf("a step that fails: %v", err)
	}
	b.failing = ""
	ran(text+"RUN +three 3", "/w: /bin/sh -c +three 3")
	if _, err := os.Stat(filepath.Join(b.base.Root, "one")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the base has what a step made: %v", err)
	}
}

// Files of other images are known by which image they are of.
func TestIdentityOfCopies(t *testing.T) {
	b := newBench(t, nil)
	var made []oci.Image
	for _, from := range []string{"a", "b"} {
		img, err := b.build("FROM base AS a\nRUN +x of-a\nFROM base AS b\nRUN +x of-b\nFROM base\nCOPY --from="+from+" /x /d", "")
		if err != nil {
			t.Fatal(err)
		}
		if got := b.list(img); !slices.Equal(got, []string{"d 644 of-" + from}) {
			t.Errorf("there is %q", got)
		}
		made = append(made, img)
	}
	if made[0].ID == made[1].ID {
		t.Error("two images are one")
	}
}

// An archive with other owners is another layer.
func TestIdentityOfOwners(t *testing.T) {
	b := newBench(t, wt.Model{"t.tgz": archive(t, "f")})
	own, err := b.build("FROM base\nADD t.tgz /", "")
	if err != nil {
		t.Fatal(err)
	}
	if roots, err := b.build("FROM base\nADD --chown=0:0 t.tgz /", ""); err != nil || roots.ID == own.ID {
		t.Errorf("two images are one: %s, %v", roots.ID, err)
	}
}

// A plan makes nothing, and finds what is kept.
func TestPlan(t *testing.T) {
	b := newBench(t, wt.Model{"a": wt.Plain("A")})
	texts := []string{"FROM base\nENV A=1", "FROM base\nCOPY a /", "FROM base\nRUN +x 1"}
	images := func() int {
		t.Helper()
		list, err := b.store.List()
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	for _, text := range texts {
		b.plan = true
		if _, err := b.build(text, ""); cell.KindOf(err) != cell.NotFound || len(b.ran) > 0 || images() != 1 {
			t.Errorf("%s: %v, ran %q, %d images", text, err, b.ran, images())
		}
	}
	for _, text := range texts {
		b.plan = false
		made, err := b.build(text, "")
		if err != nil {
			t.Fatal(err)
		}
		b.plan = true
		if found, err := b.build(text, ""); err != nil || found.ID != made.ID {
			t.Errorf("%s: found %s, %v, and made %s", text, found.ID, err, made.ID)
		}
	}
}

// Variables don't grow without bound.
func TestVariablesAreBounded(t *testing.T) {
	b := newBench(t, nil)
	for name, text := range map[string]string{
		"before the first stage": "ARG A=xxxxxxxx\n" + strings.Repeat("ARG A=$A$A\n", 40) + "FROM base",
		"in a stage":             "FROM base\nENV A=xxxxxxxx\n" + strings.Repeat("ENV A=$A$A\n", 40),
		"in one word":            "FROM base\nENV A=" + strings.Repeat("x", 1000) + "\nENV B=" + strings.Repeat("$A", 10_000),
		"nested":                 "FROM base\nENV A=" + strings.Repeat("${+", maxVariables+1),
		"by a pattern":           "FROM base\nENV A=" + strings.Repeat("x", 20_000) + "\nENV B=${A##" + strings.Repeat("*x", 10_000) + "}",
		"by a replacement":       "FROM base\nENV A=" + strings.Repeat("x", 20_000) + "\nENV B=${A//x/" + strings.Repeat("y", 20_000) + "}",
		"in a heredoc":           "FROM base\nENV A=" + strings.Repeat("x", 1000) + "\nCOPY <<E /f\n" + strings.Repeat("$A", 10_000) + "\nE",
		"by number": "FROM base\nENV" + strings.Join(slices.Collect(func(yield func(string) bool) {
			for i := range maxVariables + 1 {
				if !yield(fmt.Sprintf(" A%d=1", i)) {
					return
				}
			}
		}), ""),
	} {
		if _, err := b.build(text, ""); cell.KindOf(err) != cell.Invalid || !strings.Contains(err.Error(), "variables") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// How a RUN is written decides what executes it.
func TestCommands(t *testing.T) {
	b := newBench(t, nil)
	for text, want := range map[string]string{
		"RUN echo a && \\\n  echo b":                    "/: /bin/sh -c echo a &&   echo b",
		`RUN ["prog", "a b"]`:                           "/: prog a b",
		"SHELL [\"bash\", \"-ec\"]\nRUN x":              "/: bash -ec x",
		"RUN <<E\na\nb\nE":                              "/: /bin/sh -c a\nb\n",
		"RUN cat <<E >f\na\nE":                          "/: /bin/sh -c cat <<E >f\na\nE",
		"RUN <<E\n#!/bin/prog\na\nE":                    "/: /bin/sh -c f=$(mktemp) && printf %s \"$1\" >\"$f\" && chmod 700 \"$f\" && exec \"$f\" sh #!/bin/prog\na\n",
		"WORKDIR a\nWORKDIR ../b\nRUN --network=none x": "/b: /bin/sh -c x",
	} {
		if _, err := b.build("FROM base\n"+text, ""); err != nil {
			t.Errorf("%s: %v", text, err)
		} else if len(b.ran) != 1 || b.ran[0] != want {
			t.Errorf("%s\nran %q, want %q", text, b.ran, want)
		}
	}
}

// What can't be carried out is refused before anything starts, with its line.
func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "file with no instructions",
		"RUN x":                 "no build stage in current context",
		"FROM base\nRUNN x":     "line 2 of the Dockerfile: unknown instruction: RUNN",
		"FROM base\n\n\nCOPY a": "line 4 of the Dockerfile: COPY requires at least two arguments",
		"FROM base\nRUN --mount=type=cache,target=/c x":         "line 2 of the Dockerfile: RUN --mount is not supported",
		"FROM base\nRUN --network=host x":                       "line 2 of the Dockerfile: RUN --network=host is not supported",
		"FROM base\nRUN --security=insecure x":                  "line 2 of the Dockerfile: RUN --security and --device are not supported",
		"FROM base\nADD https://a.test/x /":                     "line 2 of the Dockerfile: ADD of https://a.test/x is not supported",
		"FROM base\nADD git@a.test:x.git /":                     "line 2 of the Dockerfile: ADD of git@a.test:x.git is not supported",
		"FROM base\nCOPY --parents a /":                         "line 2 of the Dockerfile: COPY --parents is not supported",
		"FROM base\nCOPY --from=scratch a /":                    "line 2 of the Dockerfile: COPY --from=scratch: there is nothing in it",
		"FROM base AS a\nCOPY --from=A /x /y":                   "line 2 of the Dockerfile: COPY --from=A names no earlier stage",
		"FROM base\nCOPY --from=0 /x /y":                        "line 2 of the Dockerfile: COPY --from=0 names no earlier stage",
		"FROM base\nCOPY --from=1 /x /y\nFROM base":             "line 2 of the Dockerfile: COPY --from=1 names no earlier stage",
		"FROM --platform=linux/mips base":                       "line 1 of the Dockerfile: FROM --platform=linux/mips: this host is linux/",
		"FROM $NOTHING":                                         "line 1 of the Dockerfile: FROM $NOTHING names no image",
		strings.Repeat("FROM scratch\n", maxSteps+1):            "it has more than 1000 instructions",
		"FROM base\n" + strings.Repeat("ENV A=1\n", maxSteps+1): "it has more than 1000 instructions",
		"FROM base\n#" + strings.Repeat("x", MaxSize):           "it has more than 1048576 bytes",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", text, err, want)
		} else if k := cell.KindOf(err); k != cell.Invalid && k != cell.Unsupported {
			t.Errorf("%.60s: %v is of kind %q", text, err, k)
		}
	}
	f, err := Parse([]byte("FROM base\nEXPOSE 80\nUSER web\nHEALTHCHECK NONE\nVOLUME /v\nSTOPSIGNAL 9\nLABEL a=b\n"))
	if err != nil || len(f.Notes) != 5 {
		t.Errorf("what has no meaning: %+v, %v", f, err)
	}
}

// Links of an image lead nowhere outside of it, and to an end.
func TestResolve(t *testing.T) {
	side := wt.Model{"a/b": wt.Plain("x"), "l": wt.Link("a"), "up": wt.Link("../../../a/b"), "abs": wt.Link("/l/b"), "loop": wt.Link("loop"), "gone": wt.Link("nothing/at/all")}.Side(t, nil)
	f := &contextFiles{side: side}
	for p, want := range map[string]string{"a/b": "a/b", "l/b": "a/b", "up": "a/b", "abs": "a/b", "": "", "/": "", "gone": "nothing/at/all", "x/y": "x/y", "../a": "a"} {
		if real, _, err := resolve(f, p); real != want || err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s leads to %q, %v, want %q", p, real, err, want)
		}
	}
	if _, _, err := resolve(f, "loop"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a loop leads to %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"FROM base\nRUN x", "FROM base AS a\nCOPY --from=a <<E /\nx\nE", "# escape=`\nFROM $X\nARG A=${B:-c}\nENV A=$A"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := Parse(text)
		if (file == nil) == (err == nil) {
			t.Errorf("%v, %v", file, err)
		}
		if err != nil && cell.KindOf(err) != cell.Invalid && cell.KindOf(err) != cell.Unsupported {
			t.Errorf("%v is of kind %q", err, cell.KindOf(err))
		}
		if file == nil {
			return
		}
		for i := range file.stages {
			set := settings{args: map[string]string{}}
			for _, c := range file.stages[i].steps {
				if _, err := file.next(c, &set); err != nil {
					break
				}
			}
		}
	})
}
