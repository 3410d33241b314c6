package upload

import (
	"archive/tar"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/secret"
)

// fileID identifies the file of several names.
type fileID struct{ dev, ino uint64 }

// linkGroup is one file with several names. It is decided on when all names are known: they
// share one content, and each may mark it as a secret.
type linkGroup struct {
	names       []linkName
	secret, why string // a name that keeps it out, and the reason; "" for none
}

type linkName struct {
	path string
	d    secret.Decision
}

func (p *packer) group(id fileID) *linkGroup {
	g := p.links[id]
	if g == nil {
		g = &linkGroup{}
		p.links[id] = g
	}
	return g
}

func (g *linkGroup) take(path string, d secret.Decision) {
	g.names = append(g.names, linkName{path, d})
}

func (g *linkGroup) leave(path, why string) {
	if g.secret == "" || path < g.secret {
		g.secret, g.why = path, why
	}
}

// stays records further names of a left-out file, or of the files in a left-out folder.
func (p *packer) stays(at string, st fs.FileInfo, why string) error {
	if !st.IsDir() {
		if id, ok := idOf(st); ok {
			p.group(id).leave(at, why)
		}
		return nil
	}
	f, err := p.root.Open(at)
	if err != nil {
		return nil // none of its names could be read
	}
	names, _ := f.Readdirnames(-1)
	f.Close()
	for _, name := range names {
		below := path.Join(at, name)
		if st, err := p.root.Lstat(below); err == nil {
			if err := p.stays(below, st, why); err != nil {
				return err
			}
		}
	}
	return nil
}

// linked sends the files with several names: once, and the other names as links. A secret is
// left out under all its names, except those that git tracks.
func (p *packer) linked() error {
	var groups []*linkGroup
	for _, g := range p.links {
		if len(g.names) > 0 {
			groups = append(groups, g)
		}
	}
	for _, g := range groups {
		slices.SortFunc(g.names, func(a, b linkName) int {
			if x, y := strictness(a.d), strictness(b.d); x != y {
				return y - x
			}
			return strings.Compare(a.path, b.path)
		})
	}
	slices.SortFunc(groups, func(a, b *linkGroup) int { return strings.Compare(a.names[0].path, b.names[0].path) })
	for _, g := range groups {
		first := ""
		for _, n := range g.names {
			if g.secret != "" && !n.d.Tracked {
				p.leave(n.path, "another name of "+g.secret+": "+g.why)
				continue
			}
			if first != "" {
				if err := p.t.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: n.path, Linkname: first, Format: tar.FormatPAX}); err != nil {
					return err
				}
				p.out.Files++
				continue
			}
			sent, err := p.file(n.path, n.d)
			if err != nil {
				return err
			}
			if sent {
				first = n.path
			} else if last := p.out.LeftOut; len(last) > 0 && last[len(last)-1].Path == n.path {
				g.leave(n.path, last[len(last)-1].Why)
			}
		}
	}
	return nil
}

// strictness orders decisions by how much of a file they inspect.
func strictness(d secret.Decision) int {
	switch {
	case d.Action == secret.Scrub:
		return 2
	case d.Action == secret.ScanContent && !d.Tracked:
		return 1
	}
	return 0
}
