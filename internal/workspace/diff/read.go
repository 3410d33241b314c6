package diff

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
)

// textLimit bounds the bytes of both sides of a file for a comparison by line, lineLimit the
// lines. Above, a file is treated as binary: streamed, in bounded memory.
const (
	textLimit = 64 << 20
	lineLimit = 2 << 20
)

// fileText holds the text for a comparison by line. If text is false, the sides are binary or
// too large, and nothing is held.
type fileText struct {
	text     bool
	large    bool
	old, new string
	a, b     []string // the lines
}

// load reads both sides of a change for a comparison by line.
func (d *Diff) load(ctx context.Context, c *FileChange) (t fileText, err error) {
	var size int64
	if c.old != nil {
		size += gitSize(*c.old)
	}
	if c.new != nil {
		size += gitSize(*c.new)
	}
	if size > textLimit {
		return fileText{large: true}, nil
	}
	if c.old != nil {
		if t.old, err = readContent(ctx, d.a.Contents, c.oldPath(), *c.old); err != nil {
			return t, err
		}
	}
	if c.new != nil {
		if t.new, err = readContent(ctx, d.b.Contents, c.Path, *c.new); err != nil {
			return t, err
		}
	}
	// git checks the first 8,000 bytes; this checks all, so that a script with an archive at its
	// end is binary.
	if strings.IndexByte(t.old, 0) >= 0 || strings.IndexByte(t.new, 0) >= 0 {
		return fileText{}, nil
	}
	if strings.Count(t.old, "\n")+strings.Count(t.new, "\n") > lineLimit {
		return fileText{large: true}, nil
	}
	t.text, t.a, t.b = true, splitLines(t.old), splitLines(t.new)
	return t, nil
}

// Count fills in Binary, Added and Deleted of all files. It reads them.
func (d *Diff) Count(ctx context.Context) error {
	if d.counted {
		return nil
	}
	for i := range d.Files {
		c := &d.Files[i]
		if c.OldDigest == c.NewDigest {
			continue
		}
		t, err := d.load(ctx, c)
		if err != nil {
			return err
		}
		c.Binary = !t.text
		if c.Status == StatusTypeChanged {
			c.Deleted, c.Added = len(t.a), len(t.b)
			continue
		}
		for _, e := range diffLines(t.a, t.b) {
			c.Deleted += e.a1 - e.a0
			c.Added += e.b1 - e.b0
		}
	}
	d.counted = true
	return nil
}

// CopyContent writes git's content of a file or symlink to w: that of a symlink is its target.
// It fails with Corrupt if the bytes differ from the entry; w may have received some of them by
// then. A file gets the holes of the content, and a workspace.ZeroWriter is told of them.
func CopyContent(ctx context.Context, w io.Writer, c workspace.Contents, path string, e workspace.Entry) error {
	if e.Type == workspace.Symlink {
		_, err := io.WriteString(w, e.Target)
		return err
	}
	r, err := c.Open(path, e)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", quoteName(path, false), err)
	}
	defer r.Close()
	did := false
	switch to := w.(type) {
	case *os.File:
		did, err = workspace.CopyFile(ctx, to, r, quoteName(path, false), e)
	case workspace.ZeroWriter:
		did, err = workspace.Copy(ctx, to, r, quoteName(path, false), e)
	}
	if did {
		return err
	}
	sum := sha256.New()
	out := &remembering{w: io.MultiWriter(w, sum)}
	n, err := io.Copy(out, io.LimitReader(Obeying(ctx, r), e.Size+1))
	if err != nil {
		if out.err != nil || ctx.Err() != nil {
			return err
		}
		return fmt.Errorf("cannot read %s: %w", quoteName(path, false), err)
	}
	if n != e.Size || cell.Digest(sum.Sum(nil)) != e.Digest {
		return cell.Errorf(cell.Corrupt, "diff.CopyContent", "", "cannot read %s: it is not what the tree recorded", quoteName(path, false))
	}
	return nil
}

// Obeying returns r as a reader that ends with ctx.
func Obeying(ctx context.Context, r io.Reader) io.Reader { return &obeying{ctx, r} }

type obeying struct {
	ctx context.Context
	r   io.Reader
}

func (o *obeying) Read(b []byte) (int, error) {
	if o.ctx.Err() != nil {
		return 0, context.Cause(o.ctx)
	}
	return o.r.Read(b)
}

// remembering keeps a writer's error, to tell it from the reader's.
type remembering struct {
	w   io.Writer
	err error
}

func (r *remembering) Write(b []byte) (int, error) {
	n, err := r.w.Write(b)
	r.err = err
	return n, err
}

// readContent returns the whole content. The caller has looked at the size.
func readContent(ctx context.Context, c workspace.Contents, path string, e workspace.Entry) (string, error) {
	var b strings.Builder
	b.Grow(int(gitSize(e)))
	if err := CopyContent(ctx, &b, c, path, e); err != nil {
		return "", err
	}
	return b.String(), nil
}

// gitSize returns the number of bytes git stores for a file or symlink.
func gitSize(e workspace.Entry) int64 {
	if e.Type == workspace.Symlink {
		return int64(len(e.Target))
	}
	return e.Size
}
