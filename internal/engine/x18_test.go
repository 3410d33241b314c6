package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

// A template whose image is damaged is not warm: it says what is wrong and what to do.
// Its size is the image's, since nothing of it runs.
func TestX18DamagedTemplateIsNotWarm(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	tm := b.template("warm", "x = 1")
	id := cell.ID(tm.Cell)
	dir := filepath.Join(b.private(id), imageFolder)
	pages := filepath.Join(dir, "pages.img")
	b.must(os.Mkdir(dir, 0o700))
	b.must(os.WriteFile(pages, make([]byte, megabyte), 0o600))
	f, err := fileAt(pages)
	b.must(err)
	text, err := json.Marshal(wholeFacts{Files: []program{f}})
	b.must(err)
	b.must(os.WriteFile(filepath.Join(dir, wholeFile), text, 0o600))
	state := func(what, want, cause string) {
		t.Helper()
		got, err := b.Template("warm")
		if err != nil || got.State != want || !strings.Contains(got.Cause, cause) {
			t.Errorf("%s: it is %s, %q (%v)", what, got.State, got.Cause, err)
		}
	}
	state("as it was captured", templateWarm, "")
	record, err := b.reg.template("warm")
	b.must(err)
	if n := b.imageSize(&record); n < megabyte {
		t.Errorf("its image takes %d bytes", n)
	}

	b.must(os.WriteFile(pages, append(make([]byte, megabyte-1), 1), 0o600))
	state("changed", templateFailed, "pages.img) is not what was captured; build it anew: pando template build warm")
	b.must(os.Remove(pages))
	state("lost", templateFailed, "pages.img")
	b.must(os.WriteFile(filepath.Join(dir, wholeFile), []byte("{"), 0o600))
	state("its facts are torn", templateFailed, "cannot be read")
	b.must(os.RemoveAll(dir))
}
