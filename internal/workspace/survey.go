package workspace

import (
	"context"
	"os"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/parse"
	"github.com/pando-dev/pando/internal/secret"
)

// Surveyed is the result of a dry run of an import.
type Surveyed struct {
	Files   int
	Bytes   int64
	LeftOut []LeftOut
	Notes   []string
}

// Survey lists what an import of a source would bring in and leave out. It reads files where
// content decides, and writes nothing. with and mask are those of an ImportRequest.
func Survey(ctx context.Context, source string, with secret.With, mask bool, parser *parse.Parser) (*Surveyed, error) {
	src, top, err := openSource(source)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	im, err := newImporter(ctx, ImportRequest{Source: source, With: with, Mask: mask, Parser: parser}, src, top)
	if err != nil {
		return nil, err
	}
	links := newLinkSet()
	err = walkDir(ctx, src.root, src.listThere, func(_ string, found []Found) (map[string]bool, error) {
		skip := map[string]bool{}
		for i := range found {
			f := &found[i]
			d := im.decide(f)
			if d.Action == secret.LeaveOut {
				im.leaveSecret(f, d, d.Why)
				links.leaves(im.src, f, d)
				skip[f.Path] = true
				continue
			}
			if f.Type() == Folder {
				if _, err := im.folder(f); os.IsPermission(err) {
					im.leave(f.Path, Unreadable, "not readable")
					skip[f.Path] = true
				}
			}
			if f.Type() != File || links.takes(f, d) {
				continue
			}
			if err := im.examine(f, d); err != nil {
				return nil, err
			}
		}
		return skip, nil
	})
	if err != nil {
		return nil, err
	}
	err = im.decideLinks(ctx, links, func(f *Found, d secret.Decision) (bool, error) {
		err := im.examine(f, d)
		return err == nil && im.listed(f.Path, Secret) == nil && im.listed(f.Path, Unreadable) == nil, err
	}, func(_, f *Found) error {
		im.progress(1, f.Stat.Size)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if !src.missed.none() {
		im.notes = append(im.notes, src.missed.note())
	}
	sort.Slice(im.leftOut, func(i, j int) bool { return im.leftOut[i].Path < im.leftOut[j].Path })
	return &Surveyed{Files: int(im.files), Bytes: im.bytes, LeftOut: im.leftOut, Notes: im.notes}, nil
}

// examine reads a file as far as its content decides.
func (im *importer) examine(f *Found, d secret.Decision) error {
	if d.Tracked && d.Action == secret.Scrub && f.Stat.Size > maxScrub {
		im.listSecret(f, d, tooLarge)
		d.Action = secret.Keep
	}
	if d.Action == secret.Keep {
		im.progress(1, f.Stat.Size)
		return nil
	}
	fd, err := im.src.open(f.Path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if err != nil {
		if os.IsPermission(err) {
			im.leave(f.Path, Unreadable, "not readable")
			return nil
		}
		return im.src.gone(f.Path, err)
	}
	defer unix.Close(fd)
	if is, err := isRegular(fd); !is {
		im.src.missed.add(f.Path)
		return err
	}
	if d.Action == secret.Scrub {
		null, err := unix.Open(os.DevNull, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(null)
		var e Entry
		keep, err := im.scrub(fd, null, f, &e, d)
		if keep {
			im.progress(1, f.Stat.Size)
		}
		return err
	}
	s := secret.NewScanner(1)
	s.Reset(f.Path)
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	for {
		n, err := unix.Read(fd, *buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			break
		}
		s.Write((*buf)[:n])
	}
	if found := s.Findings(); len(found) > 0 && !im.listSecret(f, d, found[0].Why()) {
		return nil
	}
	im.progress(1, f.Stat.Size)
	return nil
}
