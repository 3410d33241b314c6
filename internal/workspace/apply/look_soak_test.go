package apply

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/testenv"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// X6: of ordinary changes, from one release of a package to the next, few are
// to be looked at first: the median is three entries at most. Go's archives
// hold no modes: there, what begins with "#!" counts as executable.
func TestX06LookFirstIsShort(t *testing.T) {
	const modules, most = 50, 3
	testenv.Program(t, "go")
	testenv.Program(t, "npm")
	type release struct {
		name        string
		old, new    wt.Model
		from, until string
	}
	var all []release
	elsewhere := t.TempDir() // where this module's go.sum does not count
	command := func(name string, args ...string) []byte {
		t.Helper()
		c := exec.CommandContext(t.Context(), name, args...)
		if args[len(args)-1] != "all" {
			c.Dir = elsewhere
		}
		out, err := c.Output()
		if err != nil && len(out) == 0 {
			t.Skipf("the registry can't be reached: %s %s: %v", name, args[0], err)
		}
		return out
	}

	// The modules that this one is built from, in their version and the one before.
	var names []string
	for line := range strings.Lines(string(command("go", "list", "-m", "-f", "{{if not .Main}}{{.Path}}{{end}}", "all"))) {
		if line = strings.TrimSpace(line); line != "" {
			names = append(names, line)
		}
	}
	names = names[:min(len(names), modules*3/2)]
	versions := strings.Split(strings.TrimSpace(string(command("go", append([]string{"list", "-m", "-versions"}, names...)...))), "\n")
	for _, line := range versions {
		f := slices.DeleteFunc(strings.Fields(line), func(v string) bool { return strings.Contains(v, "-") && strings.HasPrefix(v, "v") })
		if len(f) < 3 || len(all) == modules {
			continue
		}
		r := release{name: f[0], from: f[len(f)-2], until: f[len(f)-1]}
		var models []wt.Model
		for _, v := range []string{r.from, r.until} {
			var at struct{ Zip string }
			json.Unmarshal(command("go", "mod", "download", "-json", r.name+"@"+v), &at)
			if st, err := os.Stat(at.Zip); err != nil || st.Size() > 4<<20 {
				break // retracted, or only slow
			}
			models = append(models, unzipped(t, at.Zip, r.name+"@"+v+"/"))
		}
		if len(models) == 2 {
			r.old, r.new = models[0], models[1]
			all = append(all, r)
		}
	}
	if len(all) < modules {
		t.Errorf("only %d modules have two versions", len(all))
	}
	for _, name := range []string{"chalk", "commander", "debug", "express", "glob", "minimist", "rimraf", "semver", "uuid", "yargs"} {
		var list []string
		json.Unmarshal(command("npm", "view", name, "versions", "--json"), &list)
		list = slices.DeleteFunc(list, func(v string) bool { return strings.Contains(v, "-") })
		if len(list) < 2 {
			t.Errorf("%s has no two versions", name)
			continue
		}
		r := release{name: "npm " + name, from: list[len(list)-2], until: list[len(list)-1]}
		dir := t.TempDir()
		for _, to := range []struct {
			m *wt.Model
			v string
		}{{&r.old, r.from}, {&r.new, r.until}} {
			file := strings.TrimSpace(string(command("npm", "pack", "--silent", "--pack-destination", dir, name+"@"+to.v)))
			*to.m = untarred(t, filepath.Join(dir, file))
		}
		all = append(all, r)
	}

	var counts []int
	for _, r := range all {
		review, err := reviewOf(&Request{Base: r.old.Side(t, nil).Tree, After: r.new.Side(t, nil)})
		list := review.First
		if err != nil {
			t.Fatal(err)
		}
		counts = append(counts, len(list))
		t.Logf("%3d  %s %s to %s", len(list), r.name, r.from, r.until)
		for _, l := range list {
			t.Logf("       %s (%d): %s", l.Path, l.Files, l.Why)
		}
	}
	slices.Sort(counts)
	median := counts[len(counts)/2]
	t.Logf("%d releases: median %d, nine of ten at most %d, at most %d", len(counts), median, counts[len(counts)*9/10], counts[len(counts)-1])
	if median > most {
		t.Errorf("the median is %d entries, more than %d", median, most)
	}
}

func unzipped(t *testing.T, file, prefix string) wt.Model {
	t.Helper()
	z, err := zip.OpenReader(file)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	m := wt.Model{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			t.Fatal(err)
		}
		m[strings.TrimPrefix(f.Name, prefix)] = wt.Plain(string(b))
		if strings.HasPrefix(string(b), "#!") {
			m[strings.TrimPrefix(f.Name, prefix)] = wt.Script(string(b))
		}
	}
	return m
}

func untarred(t *testing.T, file string) wt.Model {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	m := wt.Model{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return m
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(h.Name, "/")
		switch {
		case h.Typeflag != tar.TypeReg:
		case h.Mode&0o100 != 0:
			m[name] = wt.Script(string(b))
		default:
			m[name] = wt.Plain(string(b))
		}
	}
}
