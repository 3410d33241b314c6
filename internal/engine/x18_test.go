package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gc"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/testenv"
)

// A template with a damaged image is not warm: it says what is wrong and what to do.
// Its size is the image's, since nothing of it runs.
func TestX18DamagedTemplateIsNotWarm(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	tm := b.template("warm", "x = 1")
	id := cell.ID(tm.Cell)
	dir := filepath.Join(b.private(id), "memory")
	pages := filepath.Join(dir, "pages.img")
	b.must(os.Mkdir(dir, 0o700))
	b.must(os.WriteFile(pages, make([]byte, megabyte), 0o600))
	var st unix.Stat_t
	b.must(unix.Stat(pages, &st))
	f := state.Program{Path: pages, Sum: cell.Sum(make([]byte, megabyte)), Looks: state.FileStamp{Dev: st.Dev, Ino: st.Ino, Size: st.Size, MTime: st.Mtim.Nano(), CTime: st.Ctim.Nano()}}
	text, err := json.Marshal(map[string]any{"files": []state.Program{f}})
	b.must(err)
	b.must(os.WriteFile(filepath.Join(dir, "template.json"), text, 0o600))
	state := func(what, want, cause string) {
		t.Helper()
		got, err := b.Template("warm")
		if err != nil || got.State != want || !strings.Contains(got.Cause, cause) {
			t.Errorf("%s: it is %s, %q (%v)", what, got.State, got.Cause, err)
		}
	}
	state("as it was captured", "warm", "")
	record, err := b.reg.Cell(id)
	b.must(err)
	inst, _ := b.alive.Take(id) // nothing of an image lives
	if use, _ := b.spawn.Use(b.ctx); len(use) != 1 || use[0].Memory < megabyte {
		t.Errorf("its image takes what %+v says", use)
	}
	b.alive.Add(&record, inst, b.reg.Interp(id))
	b.alive.PutSealed(&record, true)

	b.must(os.WriteFile(pages, append(make([]byte, megabyte-1), 1), 0o600))
	state("changed", "failed", "pages.img) is not what was captured; build it anew: pando template build warm")
	b.must(os.Remove(pages))
	state("lost", "failed", "pages.img")
	b.must(os.WriteFile(filepath.Join(dir, "template.json"), []byte("{"), 0o600))
	state("its facts are torn", "failed", "cannot be read")
	b.must(os.RemoveAll(dir))
}

// The forks of a template that is removed with them end several at a time, and nothing of
// them is left.
func TestX18ManyEndAtOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.template("warm", "x = 1\nwrite ~/dot 2")
	b.fork("warm", api.WarmForkRequest{Count: 2 * gc.RemovesAtOnce})
	b.run("warm-1", "echo 1 > f")
	b.branch("warm-2", api.BranchRequest{})
	var mu sync.Mutex
	n := 0
	many := make(chan struct{})
	met := sync.OnceFunc(func() { close(many) })
	b.toys.mu.Lock()
	b.toys.ending = func() {
		mu.Lock()
		if n++; n == gc.RemovesAtOnce {
			met()
		}
		mu.Unlock()
		<-many
	}
	b.toys.mu.Unlock()
	defer met() // also when one waits for the other
	done := make(chan error, 1)
	go func() {
		_, err := b.RemoveTemplate(b.ctx, "warm", api.TemplateRemoval{Cascade: true})
		done <- err
	}()
	testenv.Receive(t, many, "the end of several at a time")
	err, _ := testenv.Receive(t, done, "the removal")
	b.must(err)
	if list := listOf(b.All()); len(list) > 0 {
		t.Errorf("%d cells are left, %s among them", len(list), list[0].Name)
	}
	b.nothingLeft("after the removal")
	b.verified()
}

// What keepers and drivers say of cells by their ids is said by their names.
func TestX18ErrorsNameCells(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("web", "true")
	b.template("warm", "x = 1")
	tm, err := b.Template("warm")
	b.must(err)
	web, other := string(b.id("web")), string(cell.NewID())
	for text, want := range map[string]string{
		"cannot branch cell " + web + ": busy":          "cannot branch cell web: busy",
		"cannot reach " + web + ", of " + web:           "cannot reach web, of web",
		"cannot evaluate in cell " + tm.Cell + ": only": "cannot evaluate in the cell of template warm: only",
		"no cell " + other:                              "no cell " + other,
		"no cell x" + web:                               "no cell x" + web,
	} {
		err := b.All().Named(cell.Errorf(cell.Conflict, "x", "look at "+web, "%s", text))
		if err.Error() != want || cell.KindOf(err) != cell.Conflict || cell.HintOf(err) != "look at web" {
			t.Errorf("%s became %v (hint %s), want %s", text, err, cell.HintOf(err), want)
		}
	}
	if b.All().Named(nil) != nil {
		t.Error("nothing became an error")
	}
}
