package result

import (
	"bytes"
	"io"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
)

// readings has one file with a content, which it counts the readings of.
type readings struct {
	content []byte
	opened  int
}

func (c *readings) Open(string, workspace.Entry) (io.ReadCloser, error) {
	c.opened++
	return io.NopCloser(bytes.NewReader(c.content)), nil
}

// A report of ten thousand files is drawn within a second only if none is read twice.
func TestRecalledReadsOnce(t *testing.T) {
	read := func(s workspace.Side, e workspace.Entry) (string, error) {
		f, err := s.Contents.Open("a", e)
		if err != nil {
			return "", err
		}
		defer f.Close()
		b, err := io.ReadAll(f)
		return string(b), err
	}
	file := func(content []byte) workspace.Entry {
		return workspace.Entry{Type: workspace.File, Size: int64(len(content)), Digest: cell.Sum(content)}
	}
	small, large := []byte("same"), bytes.Repeat([]byte("x"), recallFile+1)
	c := &readings{content: small}
	a, b := recall(workspace.Side{Contents: c}, workspace.Side{Contents: c})
	for _, s := range []workspace.Side{a, b, a} {
		if got, err := read(s, file(small)); got != "same" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	}
	if c.opened != 1 {
		t.Errorf("it was read %d times", c.opened)
	}
	c.content, c.opened = large, 0
	for range 2 {
		if got, err := read(a, file(large)); got != string(large) || err != nil {
			t.Error(err)
		}
	}
	if c.opened != 2 {
		t.Errorf("a large file was read %d times, and is in memory", c.opened)
	}
	// What has another length than its entry is no content of it, whatever the reader below says.
	for _, content := range []string{"s", "longer than that"} {
		c.content = []byte(content)
		a, _ := recall(workspace.Side{Contents: c}, workspace.Side{})
		if _, err := read(a, file(small)); cell.KindOf(err) != cell.Corrupt {
			t.Errorf("%q: %v", content, err)
		}
	}
}
