package e2b

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// COPY takes files from an archive that the client sends before the build begins: GET
// /templates/ID/files/HASH returns the address, PUT uploads there. The address contains a
// ticket, since clients send no key there. The archive is stored in the build's cell, in /tmp,
// which no sandbox of the template has.

// maxArchives bounds the archives of one build.
const maxArchives = 1000

// ticketQuery is the query parameter of the ticket.
const ticketQuery = "ticket"

// ticketed reports whether a request uploads an archive with a ticket.
func ticketed(r *http.Request) bool {
	return r.Method == http.MethodPut && strings.HasPrefix(r.URL.Path, "/templates/") && r.URL.Query().Get(ticketQuery) != ""
}

// archivePath is the path of an archive in the cell of its build.
func archivePath(hash string) string { return "/tmp/.pando-copy-" + hash }

// isHash reports whether s can be the hash of files.
func isHash(s string) bool {
	return s != "" && len(s) <= 128 && strings.Trim(s, "0123456789abcdefABCDEF") == ""
}

// waitingFor finds the build of a template that has not begun.
func (f *Front) waitingFor(id string) *build {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.builds {
		b.mu.Lock()
		ok := b.cell == id && b.status == buildWaiting
		b.mu.Unlock()
		if ok {
			return b
		}
	}
	return nil
}

// archiveLink returns the address for uploading the archive of a step's files.
func (f *Front) archiveLink(w http.ResponseWriter, r *http.Request, id, hash string) {
	known(w, r)
	if _, err := f.cfg.Engine.Record(cell.ID(id)); err != nil {
		refuse(w, http.StatusNotFound, "template '"+cell.Clip(id)+"' not found")
		return
	}
	b := f.waitingFor(id)
	switch {
	case b == nil:
		refuse(w, http.StatusNotFound, noBuild)
		return
	case !isHash(hash):
		refuse(w, http.StatusBadRequest, "cannot take files: "+strconv.Quote(cell.Clip(hash))+" is no hash")
		return
	}
	b.mu.Lock()
	a := b.archives[hash]
	if a == nil {
		if len(b.archives) >= maxArchives {
			b.mu.Unlock()
			refuse(w, http.StatusBadRequest, "cannot take more than "+strconv.Itoa(maxArchives)+" archives for one build")
			return
		}
		a = &archive{ticket: rand.Text()}
		b.archives[hash] = a
	}
	v := map[string]any{"present": a.present, "url": origin(r) + "/templates/" + id + "/files/" + hash + "?" + ticketQuery + "=" + a.ticket}
	b.mu.Unlock()
	answer(w, http.StatusCreated, v)
}

// archive is an archive that a build needs.
type archive struct {
	ticket  string
	present bool // it was uploaded
}

// origin is the address that a request came to.
func origin(r *http.Request) string {
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// takeArchive stores the uploaded archive of a step's files.
func (f *Front) takeArchive(w http.ResponseWriter, r *http.Request) {
	id, hash := r.PathValue("id"), r.PathValue("hash")
	b := f.waitingFor(id)
	if b != nil {
		b.mu.Lock()
		a := b.archives[hash]
		if a == nil || !same(a.ticket, r.URL.Query().Get(ticketQuery)) {
			b.mu.Unlock()
			b = nil
		} else {
			b.mu.Unlock()
		}
	}
	if b == nil {
		refuse(w, http.StatusForbidden, "cannot take files: the address is not one of a build that waits for them")
		return
	}
	b.stays()
	defer b.stays()
	in := io.Reader(r.Body)
	if f.cfg.Upload > 0 {
		in = &bounded{in, f.cfg.Upload, f.cfg.Upload}
	}
	if _, err := f.cfg.Engine.Files(r.Context(), cell.ID(id), cell.FileAct{Act: cell.FileWrite, Path: archivePath(hash)}, in); err != nil {
		fail(w, err)
		return
	}
	b.mu.Lock()
	b.archives[hash].present = true
	b.mu.Unlock()
	w.WriteHeader(http.StatusOK)
}

// copyStep runs COPY: SOURCE, DESTINATION, OWNER, MODE. from is the cell with the archive.
func (f *Front) copyStep(ctx context.Context, b *build, from, id cell.ID, s *buildStep, dir string) error {
	const op = "e2b.copy"
	arg := func(i int) string {
		if i < len(s.Args) {
			return s.Args[i]
		}
		return ""
	}
	src, dest := arg(0), arg(1)
	if src == "" || dest == "" {
		return cell.Errorf(cell.Invalid, op, "give the step a source and a destination", "cannot copy files in a step: its source or destination is missing")
	}
	if err := f.buildUser(arg(2)); err != nil {
		return err
	}
	mode := int64(-1)
	if m := arg(3); m != "" {
		var err error
		if mode, err = strconv.ParseInt(m, 8, 32); err != nil || mode < 0 || mode > 0o7777 {
			return cell.Errorf(cell.Invalid, op, "write the mode in octal, such as 0755", "cannot copy %s: %q is no mode of files", cell.Clip(src), cell.Clip(m))
		}
	}
	b.mu.Lock()
	a := b.archives[s.Files]
	sent := a != nil && a.present
	b.mu.Unlock()
	if !sent {
		return cell.Errorf(cell.NotFound, op, "upload them first, by GET and PUT /templates/ID/files/HASH", "cannot copy %s: its files were not uploaded", cell.Clip(src))
	}
	e := f.cfg.Engine
	into := strings.HasSuffix(dest, "/") || strings.HasSuffix(dest, "/.") || dest == "." || dest == "~"
	if dest = inHome(dest); !path.IsAbs(dest) {
		dest = path.Join(dir, dest)
	}
	dest = path.Clean(dest)
	if list, err := e.Files(ctx, id, cell.FileAct{Act: cell.FileStat, Path: dest}, nil); err == nil && (list[0].Type == cell.TypeDirectory || list[0].Leads == cell.TypeDirectory) {
		into = true
	}
	names, err := f.archiveNames(ctx, from, s.Files, src)
	if err != nil {
		return err
	}
	// A single file for a path that is no directory gets the destination's name.
	c := &copied{names: names, mode: mode}
	below := dest
	if only := names.only(); only != "" && !into {
		below = path.Dir(dest)
		c.rename, c.to = only, path.Base(dest)
	}
	if _, err := e.Files(ctx, id, cell.FileAct{Act: cell.FileMkdir, Path: below}, nil); err != nil && cell.KindOf(err) != cell.Exists {
		return err
	}
	pr, pw := io.Pipe()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		out := tar.NewWriter(pw)
		var err error
		for pass := 0; err == nil && pass <= names.passes; pass++ {
			err = f.archived(ctx, from, s.Files, func(in *tar.Reader) error { return c.write(in, out, pass) })
		}
		if err == nil {
			err = out.Close()
		}
		pw.CloseWithError(err)
	}()
	err = e.WriteFiles(ctx, id, below, pr)
	pr.CloseWithError(err)
	cancel()
	<-done
	return err
}

// archived opens an uploaded archive; it may be compressed.
func (f *Front) archived(ctx context.Context, id cell.ID, hash string, read func(*tar.Reader) error) error {
	pr, pw := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pw.CloseWithError(f.cfg.Engine.Manage(ctx, id, cell.FileAct{Act: cell.FileRead, Path: archivePath(hash)}, nil, pw))
	}()
	defer func() {
		pr.Close()
		<-done
	}()
	buf := bufio.NewReader(pr)
	in := io.Reader(buf)
	if magic, err := buf.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(buf)
		if err != nil {
			return notAnArchive(err)
		}
		in = z
	}
	if f.cfg.Upload > 0 { // also unpacked
		in = &bounded{in, f.cfg.Upload, f.cfg.Upload}
	}
	return read(tar.NewReader(in))
}

func notAnArchive(err error) error {
	if cell.KindOf(err) == cell.TooLarge {
		return err
	}
	return cell.Errorf(cell.Invalid, "e2b.copy", "send a tar archive, uncompressed or with gzip", "cannot read the files that were sent: %w", err)
}

// maxArchiveNames bounds the files of one archive, and maxArchiveLinks the hard links of one of
// them.
const (
	maxArchiveNames = 1 << 20
	maxArchiveLinks = 256
)

// archiveNames computes the targets of a source's files, below its destination.
func (f *Front) archiveNames(ctx context.Context, id cell.ID, hash, src string) (placed, error) {
	p := placed{at: map[string]string{}, src: path.Clean(strings.ReplaceAll(src, `\`, "/"))}
	err := f.archived(ctx, id, hash, p.read)
	if err == nil && p.passes > maxArchiveLinks {
		err = cell.Errorf(cell.Unsupported, "e2b.copy", "", "cannot copy %s: a file has more than %d names", cell.Clip(src), maxArchiveLinks)
	}
	if err == nil && len(p.at) == 0 {
		err = cell.Errorf(cell.NotFound, "e2b.copy", "", "cannot copy %s: the archive that was sent has no such files", cell.Clip(src))
	}
	return p, err
}

// read computes the targets of an archive's files.
func (p *placed) read(in *tar.Reader) error {
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return notAnArchive(err)
		}
		if len(p.at) >= maxArchiveNames {
			return cell.Errorf(cell.TooLarge, "e2b.copy", "copy fewer at a time", "cannot copy %s: more than %d files", cell.Clip(p.src), maxArchiveNames)
		}
		name := path.Clean(h.Name)
		p.place(name, h.Typeflag == tar.TypeDir)
		if to, ok := p.at[name]; ok && h.Typeflag == tar.TypeLink {
			p.link(path.Clean(h.Linkname), to)
		}
	}
}

// placed maps the files of an archive to their targets. A named file keeps its name, a named
// directory is replaced by its contents, as in Docker.
type placed struct {
	src  string
	tops []string          // entries that the source names
	dirs map[string]bool   // the directories among them
	at   map[string]string // name in the archive → target below the destination; "." for a directory itself
	// links are hard links of a file, below the destination: each becomes a copy, which is
	// written in a pass of its own over the archive.
	links  map[string][]string
	passes int
}

// link records a hard link.
func (p *placed) link(name, to string) {
	if p.links == nil {
		p.links = map[string][]string{}
	}
	p.links[name] = append(p.links[name], to)
	p.passes = max(p.passes, len(p.links[name]))
}

// place records a name of the archive. Directories come before their contents.
func (p *placed) place(name string, dir bool) {
	if p.dirs == nil {
		p.dirs = map[string]bool{}
	}
	if p.src == "." {
		p.at[name] = name
		return
	}
	parts := strings.Split(name, "/")
	n := strings.Count(p.src, "/") + 1
	if len(parts) < n {
		return
	}
	top := path.Join(parts[:n]...)
	if ok, err := path.Match(p.src, top); top != p.src && (err != nil || !ok) {
		if !strings.Contains(p.src, "**") {
			return
		}
		p.at[name] = path.Base(name) // a pattern of any depth: each file keeps its name
		if dir {
			delete(p.at, name)
		}
		return
	}
	if len(parts) == n {
		p.tops = append(p.tops, top)
		p.dirs[top] = dir
		if p.at[name] = path.Base(name); dir {
			p.at[name] = "."
		}
		return
	}
	if !p.dirs[top] {
		p.tops = append(p.tops, top) // the archive lacks an entry for it
		p.dirs[top] = true
	}
	p.at[name] = path.Join(parts[n:]...)
}

// only returns the single file that the source names; "" when there are more, or it is a
// directory.
func (p *placed) only() string {
	if len(p.at) == 1 && len(p.tops) == 1 && !p.dirs[p.tops[0]] {
		return p.tops[0]
	}
	return ""
}

// copied is a copy of an archive from its cell into the build's.
type copied struct {
	names      placed
	rename, to string // the one file that gets another name
	mode       int64  // of all files; -1: unchanged
}

func (c *copied) of(name string) (string, bool) {
	name = path.Clean(name)
	if name == c.rename && name != "" {
		return c.to, true
	}
	to, ok := c.names.at[name]
	return to, ok && to != "."
}

// write writes the archive for the cell: first everything but hard links, then in each pass one
// link of each file.
func (c *copied) write(in *tar.Reader, out *tar.Writer, pass int) error {
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return notAnArchive(err)
		}
		to, ok := c.of(h.Name)
		if pass > 0 {
			links := c.names.links[path.Clean(h.Name)]
			if ok = pass <= len(links) && h.Typeflag == tar.TypeReg; ok {
				to = links[pass-1]
			}
		}
		if !ok {
			continue
		}
		next := &tar.Header{Typeflag: h.Typeflag, Name: to, Linkname: h.Linkname, Size: h.Size, Mode: h.Mode & 0o7777, ModTime: h.ModTime}
		switch h.Typeflag {
		case tar.TypeLink:
			if _, ok := c.names.at[path.Clean(h.Linkname)]; !ok {
				return cell.Errorf(cell.Invalid, "e2b.copy", "", "cannot copy %s: it is linked to %s, which is not copied", cell.Clip(h.Name), cell.Clip(h.Linkname))
			}
			continue
		case tar.TypeReg, tar.TypeSymlink, tar.TypeDir:
		default:
			return cell.Errorf(cell.Unsupported, "e2b.copy", "", "cannot copy %s: it is no file, directory or link", cell.Clip(h.Name))
		}
		if c.mode >= 0 && h.Typeflag != tar.TypeSymlink {
			next.Mode = c.mode
		}
		if h.Typeflag == tar.TypeDir {
			next.Name += "/"
		}
		if err := out.WriteHeader(next); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return notAnArchive(err)
		}
	}
}
