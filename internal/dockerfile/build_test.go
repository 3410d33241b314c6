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
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/moby/patternmatcher"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/oci"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// bench builds images without cells: what a RUN changes is what its command says, as "+path text" and "-path".
type bench struct {
	testing.TB
	store   *oci.Store
	base    oci.Image
	links   oci.Image // an image with other names; may be missing
	context wt.Model
	ran     []string // commands and where they ran
	failing string   // a command that fails
	plan    bool
	used    []cell.Digest
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
			if ref == "links" && b.links.Root != "" {
				return b.links, nil
			}
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
		Use:    func(id cell.Digest) { b.used = append(b.used, id) },
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
				if st.Mode()&fs.ModeSetgid != 0 {
					found[name] += " sg"
				}
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

// wants checks what an image adds to the base, or why it was not made.
func (b *bench) wants(img oci.Image, err error, want []string, why string) {
	b.Helper()
	if why != "" || err != nil {
		if err == nil || why == "" || !strings.Contains(err.Error(), why) {
			b.Fatalf("%v, want %q", err, why)
		}
		return
	}
	if got := b.list(img); !slices.Equal(got, want) {
		b.Errorf("there is\n%q\nwant\n%q", got, want)
	}
}

func archive(t *testing.T, names ...string) wt.Thing {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, n := range names {
		if name, to, ok := strings.Cut(n, "->"); ok {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if name, ok := strings.CutSuffix(n, "=>"); ok {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeChar, Name: name, Devmajor: 1, Devminor: 3}); err != nil {
				t.Fatal(err)
			}
			continue
		}
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
		"no match":                               {text: "COPY *.none /n/\nCOPY a *.none /m/", want: []string{"m/ 755", "m/a 644 A"}},
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
		"a folder over a file":                   {text: "COPY dir /entry", err: "line 3 of the Dockerfile: /entry is no folder"},
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
			b.wants(img, err, c.want, c.err)
		})
	}
}

// Where things go, and what gives way to what, is as BuildKit's copies have it.
func TestDestinations(t *testing.T) {
	context := wt.Model{"a": wt.Plain("A"), "b": wt.Plain("B"), "x.txt": wt.Plain("X"), "docs/a.md": wt.Plain("1"), "docs/sub/b.md": wt.Plain("2"), "docs/sub/c.txt": wt.Plain("3"), "docs/keep.md": wt.Plain("4"),
		"clash/old/f": wt.Plain("f"), "other/old": wt.Plain("f"), "links/current/f": wt.Plain("f"), "t.tgz": archive(t, "in"),
		"deep/a/f.log": wt.Plain("l"), "deep/a/f": wt.Plain("f"), "deep/gone/x": wt.Plain("x"), "current": wt.Link("links/current"), "in": wt.Plain("f"), "one/to/x": wt.Plain("x"),
		"l.tgz": archive(t, "to->data"), "r.tgz": archive(t, ".->/etc"), "root.tgz": archive(t, "dev/null=>", "in"), "d.tgz": archive(t, "b/in"), ".dockerignore": wt.Plain("deep/*\n!deep/a/f\n")}
	for name, c := range map[string]struct {
		text string
		want []string
		err  string
	}{
		"a link to a file is followed":         {text: "COPY --from=links /ln /\nRUN +f 1\nCOPY a /file", want: []string{"f 644 A", "file -> f", "nothing -> no/where"}},
		"a link to nothing is followed":        {text: "COPY --from=links /ln /\nCOPY a /nothing", want: []string{"file -> f", "no/ 755", "no/where 644 A", "nothing -> no/where"}},
		"a link on the way is followed":        {text: "COPY a /current/new/", want: []string{"data/new/ 755", "data/new/a 644 A"}},
		"a folder into a link to one":          {text: "COPY clash/old /current", want: []string{"data/f 644 f"}},
		"a link that is copied over":           {text: "COPY --from=links /ln /n\nCOPY a /n/b\nCOPY --from=links /file /n/", want: []string{"n/ 755", "n/b 644 A", "n/file 644 of links", "n/nothing -> no/where"}},
		"a file in the place of a folder":      {text: "COPY a /n/a/f\nCOPY a /n/", err: "line 4 of the Dockerfile: /n/a is a folder, and none is copied to it"},
		"a file in the place of one, deeper":   {text: "COPY --from=links /dirs /n\nCOPY other /n", err: "/n/old is a folder, and none is copied to it"},
		"a folder in the place of a file":      {text: "COPY clash /data", err: "/data/old is no folder, and one is copied to it"},
		"a folder in the place of a link":      {text: "COPY links /", err: "/current is no folder, and one is copied to it"},
		"below a file":                         {text: "COPY a /entry/x", err: "/entry is no folder"},
		"a file, as a folder":                  {text: "COPY a /entry/", err: "/entry/ is no folder"},
		"an archive onto a file":               {text: "ADD t.tgz /entry", err: "/entry is no folder"},
		"two of one instruction":               {text: "COPY clash other /n/", err: "/n/old is a folder, and none is copied to it"},
		"a working directory that is a file":   {text: "WORKDIR /entry", err: "line 3 of the Dockerfile: /entry is no folder"},
		"a working directory by a link":        {text: "WORKDIR /current/w", want: []string{"data/w/ 755"}},
		"modes of what is made on the way":     {text: "COPY --chmod=700 a /n/m/", want: []string{"n/ 700", "n/m/ 700", "n/m/a 700 A"}},
		"modes of folders below are the new":   {text: "COPY --chmod=711 docs /n\nCOPY docs /n", want: []string{"n/ 711", "n/a.md 644 1", "n/keep.md 644 4", "n/sub/ 755", "n/sub/b.md 644 2", "n/sub/c.txt 644 3"}},
		"a folder's bits":                      {text: "COPY --from=links /bits /n", want: []string{"n/ 755", "n/in/ 755 sg", "n/in/f 644 f"}},
		"excluded, at any depth":               {text: "COPY --exclude=**/*.md docs /n", want: []string{"n/ 755", "n/sub/ 755", "n/sub/c.txt 644 3"}},
		"excluded but for one":                 {text: "COPY --exclude=sub --exclude=!sub/c.txt docs /n", want: []string{"n/ 755", "n/a.md 644 1", "n/keep.md 644 4", "n/sub/ 755", "n/sub/c.txt 644 3"}},
		"excluded, with nothing left":          {text: "COPY --exclude=sub --exclude=!sub/z docs /n", want: []string{"n/ 755", "n/a.md 644 1", "n/keep.md 644 4"}},
		"excluded of what is named":            {text: "COPY --exclude=*.txt x* a /n/", want: []string{"n/ 755", "n/a 644 A"}},
		"excluded by no pattern":               {text: "COPY --exclude=[ docs /n", err: "line 3 of the Dockerfile: cannot read --exclude"},
		"excepted below what is ignored":       {text: "COPY deep /n", want: []string{"n/ 755", "n/a/ 755", "n/a/f 644 f"}},
		"excepted, by name":                    {text: "COPY deep/a/f /n", want: []string{"n 644 f"}},
		"ignored, by its folder":               {text: "COPY deep/a/f.log /n", err: "deep/a/f.log is not in the context"},
		"a heredoc's name":                     {text: "COPY <<../../data/q /n/m/\nx\n../../data/q", want: []string{"n/ 755", "n/m/ 755", "n/m/q 644 x\n"}},
		"a heredoc without a name":             {text: "COPY <<.. /n/\nx\n..", err: "is no name of a file"},
		"beside what an archive has":           {text: "ADD t.tgz in /n/", want: []string{"n/ 755", "n/in 644 f"}},
		"a link in an archive":                 {text: "ADD l.tgz one /n/", err: "/n/to is no folder"},
		"a file over an archive's folder":      {text: "ADD d.tgz b /n/", err: "/n/b is a folder, and none is copied to it"},
		"above where a link leads":             {text: "COPY --from=links /up /n", want: []string{"n 644 right"}},
		"patterns below a link":                {text: "COPY --from=links /vr/*.c /n/", want: []string{"n/ 755", "n/x.c 644 c"}},
		"patterns below a link of the context": {text: "COPY current/* /n/", want: []string{"n/ 755", "n/f 644 f"}},
		"excluded, but it is there":            {text: "RUN +n/sub/old 1\nCOPY --chmod=700 --exclude=sub --exclude=!sub/c.txt docs /n", want: []string{"n/ 755", "n/a.md 700 1", "n/keep.md 700 4", "n/sub/ 755", "n/sub/c.txt 700 3", "n/sub/old 644 1"}},
		"ignored, with nothing excepted":       {text: "COPY deep/gone /n", err: "deep/gone is not in the context"},
		"an archive, then what is excepted":    {text: "ADD t.tgz deep /n/", want: []string{"n/ 755", "n/a/ 755", "n/a/f 644 f", "n/in 600 from the archive"}},
		"an archive's root":                    {text: "ADD r.tgz /n/", err: "its root is no folder"},
		"a link to nothing, and up":            {text: "COPY --from=links /ups /\nCOPY a /upper", want: []string{"data/q 644 A", "upper -> missing/../../../data/q"}},
		"a root file system":                   {text: "ADD root.tgz /", want: []string{"in 600 from the archive"}},
		"devices elsewhere":                    {text: "ADD root.tgz /srv", err: "is a device"},
		"a long name":                          {text: "WORKDIR /" + strings.Repeat("a", 256), err: "line 3 of the Dockerfile: the name a"},
		"a deep path":                          {text: "COPY a " + strings.Repeat("/a", 20_000), err: "line 3 of the Dockerfile: the path a/a"},
		"a name that would hide":               {text: "WORKDIR /.wh.x/y", err: "line 3 of the Dockerfile: cannot copy .wh.x"},
		"to the root":                          {text: "COPY docs /", want: []string{"a.md 644 1", "keep.md 644 4", "sub/ 755", "sub/b.md 644 2", "sub/c.txt 644 3"}},
		"a heredoc in the place of a folder":   {text: "COPY <<data /\nx\ndata", err: "/data is a folder, and none is copied to it"},
		"a heredoc by a link":                  {text: "COPY --from=links /ln /\nCOPY <<E /nothing\nx\nE", want: []string{"file -> f", "no/ 755", "no/where 644 x\n", "nothing -> no/where"}},
		"over what the instruction has copied": {text: "COPY a b /n/\nCOPY docs/a.md docs/sub/../a.md /n/", want: []string{"n/ 755", "n/a 644 A", "n/a.md 644 1", "n/b 644 B"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, context)
			var err error
			b.links, err = b.store.Derive(t.Context(), nil, oci.Image{ID: cell.Sum([]byte("links"))}, func(w *tar.Writer) error {
				return errors.Join(put(w, "f", "of links", 0o644), put(w, "dirs/old/f", "f", 0o644), put(w, "bits/in/f", "f", 0o644), put(w, "run/x.c", "c", 0o644), put(w, "c", "wrong", 0o644), put(w, "x/c", "right", 0o644), put(w, "x/y/z", "z", 0o644),
					w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "vr", Linkname: "/run"}), w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "b", Linkname: "/x/y"}), w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "up", Linkname: "b/../c"}),
					w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "ups/upper", Linkname: "missing/../../../data/q"}),
					w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "bits/in/", Mode: 0o2755}),
					w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "ln/file", Linkname: "f"}), w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "file", Linkname: "f"}), w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "ln/nothing", Linkname: "no/where"}))
			})
			if err != nil {
				t.Fatal(err)
			}
			img, err := b.build("# two lines\nFROM base\n"+c.text, "")
			b.wants(img, err, c.want, c.err)
		})
	}
}

// owned are files that belong to others.
type owned struct{ files }

func (o owned) stat(p string) (info, error) {
	i, err := o.files.stat(p)
	i.uid, i.gid = 33, 44
	return i, err
}

// The files of a context are root's, those of images keep their owner, and --chown gives all of them to another, with the folders that are made.
func TestOwners(t *testing.T) {
	context := &contextFiles{side: wt.Model{"d/sub/f": wt.Plain("f")}.Side(t, nil)}
	for _, c := range []struct {
		src   files
		chown string
		want  string
	}{
		{context, "", "n:0:0 n/sub:0:0 n/sub/f:0:0"},
		{context, "7:8", "n:7:8 n/sub:7:8 n/sub/f:7:8"},
		{owned{context}, "", "n:0:0 n/sub:33:44 n/sub/f:33:44"},
		{owned{context}, "7:8", "n:7:8 n/sub:7:8 n/sub/f:7:8"},
	} {
		group := newCopies(t.Context(), nil)
		k := &copying{sources: []string{"d"}, dest: "/n", chown: c.chown}
		if err := group.add(k, c.src, cell.Digest{}, func(chown string) (int, int, error) { return accounts(nil, chown) }); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := errors.Join(group.write(t.Context(), w), w.Close()); err != nil {
			t.Fatal(err)
		}
		var got []string
		for r := tar.NewReader(&b); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprintf("%s:%d:%d", strings.TrimSuffix(h.Name, "/"), h.Uid, h.Gid))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("--chown=%s has %q, want %q", c.chown, got, c.want)
		}
	}
}

// A base image's SHELL is used, and what its ONBUILD says is done in the stage that is made from it, once.
func TestBaseImages(t *testing.T) {
	b := newBench(t, wt.Model{"a": wt.Plain("A")})
	b.base.Shell, b.base.OnBuild = []string{"bash", "-c"}, []string{"COPY a /n/", "RUN <<E\n+t 1\nE"}
	img, err := b.build("FROM base AS one\nRUN +x 1\nFROM one\nRUN +y 1", "")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"/: bash -c +t 1\n", "/: bash -c +x 1", "/: bash -c +y 1"}; !slices.Equal(b.ran, want) {
		t.Errorf("ran %q, want %q", b.ran, want)
	}
	if got, want := b.list(img), []string{"n/ 755", "n/a 644 A", "t 644 1", "x 644 1", "y 644 1"}; !slices.Equal(got, want) {
		t.Errorf("there is %q, want %q", got, want)
	}
	b.base.OnBuild = nil
	if _, err := b.build("FROM base AS one\nONBUILD RUN +o 1\nRUN +x 1\nFROM one\nRUN +z 1", ""); err != nil || !slices.Equal(b.ran, []string{"/: bash -c +x 1", "/: bash -c +o 1", "/: bash -c +z 1"}) {
		t.Errorf("ran %q, %v", b.ran, err)
	}
	for trigger, want := range map[string]string{
		"RUNN x": "unknown instruction: RUNN", "ONBUILD RUN x": "ONBUILD ONBUILD is no instruction", "FROM base": "is not a command", "COPY --from=one /a /b": "ONBUILD COPY --from is not supported",
		"RUN --mount=type=cache,target=/c x": "RUN --mount is not supported", "": "ONBUILD", "ENV A=b\nENV A=c": "it has to be one instruction", "RUN " + strings.Repeat("x", MaxSize): "have more than", "ENV A=${": "syntax error",
	} {
		b.base.OnBuild = []string{trigger}
		if _, err := b.build("# comment\nFROM base\nRUN +x 1", ""); err == nil || !strings.Contains(err.Error(), "line 2 of the Dockerfile: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", trigger, err, want)
		}
	}
	b.base.OnBuild, b.base.Env = nil, slices.Repeat([]string{"A=" + strings.Repeat("x", 1000)}, 2000)
	for i := range b.base.Env {
		b.base.Env[i] = fmt.Sprint("V", i) + b.base.Env[i]
	}
	if _, err := b.build("FROM base\nRUN +x 1", ""); err == nil || !strings.Contains(err.Error(), "line 1 of the Dockerfile: cannot use image base: its variables have more than") {
		t.Errorf("its variables: %v", err)
	}
	b.base.Env, b.base.OnBuild = nil, slices.Repeat([]string{"ENV A=1"}, maxSteps/2)
	if _, err := b.build("FROM base AS b\nRUN +x 1\nFROM base AS c\nCOPY --from=b /x /y\nFROM base\nCOPY --from=c /y /z", ""); err == nil || !strings.Contains(err.Error(), "more than 1000 ONBUILD") {
		t.Errorf("too many: %v", err)
	}
}

// A build says which images it needs: those it begins with, those it copies from, and all that it makes on the way.
func TestImagesInUse(t *testing.T) {
	b := newBench(t, wt.Model{"a": wt.Plain("A")})
	img, err := b.build("FROM base AS one\nRUN +x 1\nFROM scratch\nCOPY --from=one /x /x\nCOPY a /a\nENV A=1", "")
	if err != nil {
		t.Fatal(err)
	}
	list, err := b.store.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if !slices.Contains(b.used, i.ID) {
			t.Errorf("it does not say that it needs %s, made by %+v", i.ID, i.Made)
		}
	}
	if len(list) != 5 || !slices.Contains(b.used, img.ID) {
		t.Errorf("there are %d images", len(list))
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
		"in one instruction":     "FROM base\nENV A=" + strings.Repeat("x", 50_000) + "\nENV B=$A$A$A$A$A$A$A$A$A$A\nLABEL" + strings.Repeat(" k=$B$B$B$B$B", 300),
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
		"FROM base\nRUN \xff":   "line 2 of the Dockerfile: it is not text in UTF-8",
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
	f, err := Parse([]byte("FROM base\nEXPOSE 80\nUSER web\nONBUILD RUN x\nHEALTHCHECK NONE\nVOLUME /v\nSTOPSIGNAL 9\nLABEL a=b\n"))
	if err != nil || len(f.Notes) != 1 {
		t.Errorf("what is not used: %+v, %v", f, err)
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

// Whatever a .dockerignore or --exclude says, it names files or is refused.
func FuzzPatterns(f *testing.F) {
	f.Add("a/*\n!a/b\n**/c\n", "a/b/c")
	f.Add("[a-", "x")
	f.Fuzz(func(t *testing.T, text, at string) {
		if len(text) > 1<<12 || len(at) > 1<<10 {
			return
		}
		list := strings.Split(text, "\n")
		p, err := newPatterns("the patterns", list)
		if err != nil {
			if cell.KindOf(err) != cell.Invalid {
				t.Errorf("%v is of kind %q", err, cell.KindOf(err))
			}
			return
		}
		var above patternmatcher.MatchInfo
		dir := ""
		for part := range strings.SplitSeq(at, "/") {
			dir = join(dir, part)
			if _, above, err = p.match(dir, above); err != nil {
				return
			}
		}
	})
}

// Whatever an archive is, ADD copies it, unpacks it within the destination, or refuses it.
func FuzzArchive(f *testing.F) {
	var seed bytes.Buffer
	w := tar.NewWriter(&seed)
	if err := errors.Join(put(w, "a/../../b", "text", 0o644), w.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: "l", Linkname: "../../etc/passwd"}), w.Close()); err != nil {
		f.Fatal(err)
	}
	f.Add(seed.Bytes())
	f.Add([]byte("\x1f\x8b\x08\x00"))
	f.Add([]byte("BZh91AY&SY"))
	f.Add([]byte("\x28\xb5\x2f\xfd\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		src := &contextFiles{side: wt.Model{"t": wt.Plain(string(b))}.Side(t, nil)}
		i, err := src.stat("t")
		if err != nil {
			t.Fatal(err)
		}
		yes, err := isArchive(t.Context(), src, "t", i)
		if !yes || err != nil {
			return
		}
		var out bytes.Buffer
		to := tar.NewWriter(&out)
		if (&item{to: "d", from: "t", src: src, info: i, archive: true}).unpack(t.Context(), to) != nil {
			return
		}
		to.Flush()
		for r := tar.NewReader(&out); ; {
			h, err := r.Next()
			if err != nil {
				return
			}
			if name := strings.TrimSuffix(h.Name, "/"); !filepath.IsLocal(name) || name != "d" && !strings.HasPrefix(name, "d/") {
				t.Errorf("%q is outside of its folder", h.Name)
			}
			if h.Typeflag == tar.TypeLink && !strings.HasPrefix(h.Linkname, "d/") {
				t.Errorf("%q is a link to %q", h.Name, h.Linkname)
			}
		}
	})
}

// What an image says of its program is what the last instructions say; an ENTRYPOINT drops the base's CMD, and not the
// stage's own.
func TestProgram(t *testing.T) {
	t.Parallel()
	base := oci.Service{Entrypoint: []string{"/old"}, Command: []string{"old"}, Ports: []int{1}}
	for text, want := range map[string]oci.Service{
		"":                                 base,
		"ENTRYPOINT [\"/e\"]":              {Entrypoint: []string{"/e"}, Ports: []int{1}},
		"CMD [\"new\"]":                    {Entrypoint: []string{"/old"}, Command: []string{"new"}, Ports: []int{1}},
		"CMD [\"new\"]\nENTRYPOINT run it": {Entrypoint: []string{"/bin/sh", "-c", "run it"}, Command: []string{"new"}, Ports: []int{1}},
		"SHELL [\"/bin/ash\"]\nCMD a b":    {Entrypoint: []string{"/old"}, Command: []string{"/bin/ash", "a b"}, Ports: []int{1}},
		"HEALTHCHECK --interval=5s CMD [\"ask\", \"it\"]":  {Entrypoint: []string{"/old"}, Command: []string{"old"}, Ports: []int{1}, Ready: []string{"ask", "it"}},
		"HEALTHCHECK CMD ask it\nHEALTHCHECK NONE":         {Entrypoint: []string{"/old"}, Command: []string{"old"}, Ports: []int{1}},
		"HEALTHCHECK CMD ask it":                           {Entrypoint: []string{"/old"}, Command: []string{"old"}, Ports: []int{1}, Ready: []string{"ask it"}, ReadyShell: true},
		"EXPOSE 80 53/udp\nVOLUME v /d\nSTOPSIGNAL SIGINT": {Entrypoint: []string{"/old"}, Command: []string{"old"}, Ports: []int{1, 80}, Volumes: []string{"/d", "/w/v"}, StopSignal: "SIGINT"},
	} {
		f, err := Parse([]byte("FROM base\n" + text))
		if err != nil {
			t.Fatal(err)
		}
		s := settings{Workdir: "/w", service: base}
		for _, c := range f.stages[0].steps {
			if _, err := f.next(c, &s); err != nil {
				t.Fatal(err)
			}
		}
		if !reflect.DeepEqual(s.service, want) {
			t.Errorf("%s: %+v, want %+v", text, s.service, want)
		}
	}
}
