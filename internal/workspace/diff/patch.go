package diff

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
)

// maxGitPatch is the size of the largest patch that git apply takes
// (MAX_APPLY_SIZE in its source). It is a variable for a test.
var maxGitPatch int64 = 1023 << 20

// Patch writes d in git's format. "git apply" brings it onto a clean clone of
// the first state and yields the second one's content digest; "git apply -R"
// goes back. Bytes are raw: the output is for programs. Files that are binary
// or too large to be compared by line become binary patches; these are
// streamed, so memory stays bounded whatever the size, and holes cost a
// thousandth of their length. A patch that would be larger than git apply
// takes is Unsupported; w has the beginning of it by then.
func (d *Diff) Patch(ctx context.Context, w io.Writer) error {
	p := &patcher{ctx: ctx, d: d}
	p.w = bufio.NewWriterSize(&bounded{w: w, left: maxGitPatch - 1}, 64<<10)
	if err := d.each(p.file); err != nil {
		return err
	}
	return p.w.Flush()
}

// each calls f for each file, and twice for a change of type: as in git, the old file is deleted, then
// the new one created.
func (d *Diff) each(f func(*FileChange) error) error {
	for i := range d.Files {
		c := d.Files[i]
		parts := []FileChange{c}
		if c.Status == StatusTypeChanged {
			parts = []FileChange{c, c}
			parts[0].new, parts[1].old = nil, nil
		}
		for j := range parts {
			if err := f(&parts[j]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Weight is the number of bytes that Patch reads.
func (d *Diff) Weight() (n int64) {
	for _, c := range d.Files {
		if c.old != nil && c.new != nil && c.OldDigest == c.NewDigest {
			continue
		}
		for _, e := range []*workspace.Entry{c.old, c.new} {
			if e != nil {
				n += e.Size
			}
		}
	}
	return n
}

type patcher struct {
	ctx context.Context
	d   *Diff
	w   *bufio.Writer
}

// bounded limits the output to what git apply takes.
type bounded struct {
	w    io.Writer
	left int64
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, cell.Errorf(cell.Unsupported, "diff.Patch", "bring the changes over with pando accept --apply, or files with pando cp",
			"cannot make a patch: it would be larger than git apply takes (%d MiB)", maxGitPatch>>20)
	}
	return b.w.Write(p)
}

func (p *patcher) file(c *FileChange) error {
	for _, l := range headLines(c, true) {
		fmt.Fprintf(p.w, "%s\n", l)
	}
	if c.old != nil && c.new != nil && c.OldDigest == c.NewDigest {
		return nil
	}
	t, err := p.d.load(p.ctx, c)
	if err != nil {
		return err
	}
	old, new, err := p.blobIDs(c, &t)
	if err != nil {
		return err
	}
	fmt.Fprintf(p.w, "index %s..%s", old, new)
	if c.old != nil && c.new != nil && ModeOf(c.old) == ModeOf(c.new) {
		fmt.Fprintf(p.w, " %s", ModeOf(c.new))
	}
	fmt.Fprintln(p.w)
	if !t.text {
		return p.binary(c)
	}
	if t.old == "" && t.new == "" {
		return nil
	}
	from, to := fileLines(c, true)
	fmt.Fprintf(p.w, "%s\n%s\n", from, to)
	return writeHunks(t.a, t.b, diffLines(t.a, t.b), func(kind byte, text string) error {
		if kind != '@' {
			p.w.WriteByte(kind)
		}
		p.w.WriteString(text)
		return p.w.WriteByte('\n') // keeps and returns the first error
	})
}

// blobIDs returns git's names for both sides, from the loaded text or, for binary files, by
// reading them.
func (p *patcher) blobIDs(c *FileChange, t *fileText) (old, new string, err error) {
	old, new = noBlob, noBlob
	if t.text {
		if c.old != nil {
			old = blobID(t.old)
		}
		if c.new != nil {
			new = blobID(t.new)
		}
		return old, new, nil
	}
	if c.old != nil {
		if old, err = streamBlobID(p.ctx, p.d.a.Contents, c.oldPath(), *c.old); err != nil {
			return "", "", err
		}
	}
	if c.new != nil {
		new, err = streamBlobID(p.ctx, p.d.b.Contents, c.Path, *c.new)
	}
	return old, new, err
}

// headLines gives the lines of git's extended header, without "index".
func headLines(c *FileChange, octal bool) []string {
	from, to := c.oldPath(), c.Path
	quote := quoteName
	if strings.Contains(from+"\n"+to, " /") {
		quote = cString // git reads this line wrongly when a folder's name ends with a space
	}
	lines := []string{"diff --git " + quote("a/"+from, octal) + " " + quote("b/"+to, octal)}
	switch {
	case c.old == nil:
		return append(lines, "new file mode "+ModeOf(c.new).String())
	case c.new == nil:
		return append(lines, "deleted file mode "+ModeOf(c.old).String())
	}
	if o, n := ModeOf(c.old), ModeOf(c.new); o != n {
		lines = append(lines, "old mode "+o.String(), "new mode "+n.String())
	}
	if from != to {
		lines = append(lines,
			fmt.Sprintf("similarity index %d%%", c.Similarity),
			"rename from "+quoteName(from, octal),
			"rename to "+quoteName(to, octal))
	}
	return lines
}

// fileLines gives the two lines before the first hunk. A name with a space is ended by a tab, so
// that the rest of the line is not taken for a part of it.
func fileLines(c *FileChange, octal bool) (from, to string) {
	label := func(sign, side, name string, there bool) string {
		if !there {
			return sign + " /dev/null"
		}
		s := sign + " " + quoteName(side+name, octal)
		if strings.Contains(name, " ") {
			s += "\t"
		}
		return s
	}
	return label("---", "a/", c.oldPath(), c.old != nil), label("+++", "b/", c.Path, c.new != nil)
}

// binary writes a change as a "GIT binary patch": both contents in full, the
// new one to go forward, the old one to go back.
func (p *patcher) binary(c *FileChange) error {
	fmt.Fprintln(p.w, "GIT binary patch")
	if err := p.literal(p.d.b.Contents, c.Path, c.new); err != nil {
		return err
	}
	return p.literal(p.d.a.Contents, c.oldPath(), c.old)
}

// literal writes one content: its size, then lines of its deflated form, then
// an empty line. e is nil for "no file".
func (p *patcher) literal(from workspace.Contents, path string, e *workspace.Entry) error {
	var size int64
	if e != nil {
		size = gitSize(*e)
	}
	fmt.Fprintf(p.w, "literal %d\n", size)
	lines := &base85Lines{w: p.w}
	z, err := newZlibWriter(lines, size)
	if err != nil {
		return err
	}
	if e != nil {
		if err := CopyContent(p.ctx, z, from, path, *e); err != nil {
			return err
		}
	}
	if err := z.Close(); err != nil {
		return err
	}
	if err := lines.flush(); err != nil {
		return err
	}
	return p.w.WriteByte('\n')
}

// base85Line is how many bytes stand on a line.
const base85Line = 52

// base85Digits is git's alphabet.
const base85Digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"

// base85Lines writes bytes as git's binary patches do: lines of at most 52
// bytes, each a letter for their number (A-Z is 1-26, a-z is 27-52) and five
// digits for each four bytes, big-endian, the last ones padded with zeros.
type base85Lines struct {
	w   *bufio.Writer
	buf [base85Line]byte
	n   int
}

func (l *base85Lines) Write(b []byte) (int, error) {
	total := len(b)
	for len(b) > 0 {
		n := copy(l.buf[l.n:], b)
		l.n, b = l.n+n, b[n:]
		if l.n == base85Line {
			if err := l.flush(); err != nil {
				return 0, err
			}
		}
	}
	return total, nil
}

func (l *base85Lines) flush() error {
	if l.n == 0 {
		return nil
	}
	clear(l.buf[l.n:])
	count := byte('A' + l.n - 1)
	if l.n > 26 {
		count = byte('a' + l.n - 27)
	}
	l.w.WriteByte(count)
	for i := 0; i < l.n; i += 4 {
		v := binary.BigEndian.Uint32(l.buf[i:])
		var digits [5]byte
		for j := 4; j >= 0; j-- {
			digits[j] = base85Digits[v%85]
			v /= 85
		}
		l.w.Write(digits[:])
	}
	l.n = 0
	return l.w.WriteByte('\n')
}

// noBlob is git's word for "no file".
const noBlob = "0000000000000000000000000000000000000000"

// blobID returns the name git gives to content s.
func blobID(s string) string {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", len(s))
	io.WriteString(h, s)
	return hex.EncodeToString(h.Sum(nil))
}

// streamBlobID is blobID for content that is too large to be held.
func streamBlobID(ctx context.Context, c workspace.Contents, path string, e workspace.Entry) (string, error) {
	h := workspace.NewSum(sha1.New())
	fmt.Fprintf(h, "blob %d\x00", gitSize(e))
	if err := CopyContent(ctx, h, c, path, e); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Bytes()), nil
}
