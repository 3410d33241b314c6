package workspacetest

import (
	"fmt"
	"math/rand"
	"slices"
	"strings"
)

// trickyNames are as odd as files' names get; some are folders now and then.
var trickyNames = []string{"a", "b", "c.txt", "sp ace", " lead", "trail ", "tab\there", "quote\"d", `back\slash`,
	"ünï", "\xff\xfe", "new\nline", "-rf", "a b", "$(id)", "{x => y}", "f", "g", "h", "=>"}

// trickyTargets has none of trickyNames, nor the workspace: git apply (2.39) refuses to put a
// folder where a symlink leads back to itself.
var trickyTargets = []string{"..", "/", "nowhere", "../z z", "zz/../c.txt.y", "/proc/version", "\xfe"}

func randomPath(r *rand.Rand) string {
	p := trickyNames[r.Intn(len(trickyNames))]
	for r.Intn(3) == 0 {
		p += "/" + trickyNames[r.Intn(len(trickyNames))]
	}
	return p
}

// RandomText is a few lines, or something binary.
func RandomText(r *rand.Rand) string {
	var b strings.Builder
	switch r.Intn(10) {
	case 0:
		return ""
	case 1:
		buf := make([]byte, r.Intn(300))
		r.Read(buf)
		return string(buf) + "\x00"
	}
	end := "\n"
	if r.Intn(5) == 0 {
		end = "\r\n"
	}
	for range r.Intn(40) {
		fmt.Fprintf(&b, "%s%d%s", strings.Repeat(" ", r.Intn(3)), r.Intn(12), end)
	}
	if r.Intn(4) == 0 {
		b.WriteString("no newline")
	}
	return b.String()
}

func randomThing(r *rand.Rand) Thing {
	switch r.Intn(8) {
	case 0:
		return Link(trickyTargets[r.Intn(len(trickyTargets))])
	case 1:
		return Script(RandomText(r))
	}
	return Plain(RandomText(r))
}

// Put places a thing, removing what is in its way.
func (m Model) Put(p string, f Thing) {
	for q := range m {
		if q == p || strings.HasPrefix(q, p+"/") || strings.HasPrefix(p, q+"/") {
			delete(m, q)
		}
	}
	m[p] = f
}

// Random is some workspace, with names as odd as they get.
func Random(r *rand.Rand) Model {
	m := Model{}
	for range r.Intn(12) {
		m.Put(randomPath(r), randomThing(r))
	}
	return m
}

// Mutate makes what an agent could have made of m.
func Mutate(r *rand.Rand, m Model) Model {
	n := Model{}
	for p, f := range m {
		n[p] = f
	}
	for range r.Intn(6) {
		all := n.Paths()
		p := randomPath(r)
		if len(all) > 0 && r.Intn(4) > 0 {
			p = all[r.Intn(len(all))]
		}
		f, there := n[p]
		switch r.Intn(7) {
		case 0:
			delete(n, p)
		case 1:
			if there && f.Link == "" {
				f.Mode ^= 0o755
				if f.Mode != 0o755 {
					f.Mode = 0
				}
				n[p] = f
			}
		case 2:
			if there {
				delete(n, p)
				n.Put(randomPath(r), f)
			}
		case 3, 4:
			if there && f.Link == "" {
				f.Text = EditLines(r, f.Text)
				if r.Intn(2) == 0 {
					delete(n, p)
					p = randomPath(r)
				}
				n.Put(p, f)
			}
		case 5:
			n.Put(p+"/"+trickyNames[r.Intn(len(trickyNames))], randomThing(r))
		case 6:
			n.Put(p, randomThing(r))
		}
	}
	return n
}

// EditLines changes a few lines of s.
func EditLines(r *rand.Rand, s string) string {
	lines := slices.Collect(strings.Lines(s))
	for range 1 + r.Intn(3) {
		i := r.Intn(len(lines) + 1)
		switch {
		case r.Intn(2) == 0 || i == len(lines):
			lines = append(lines[:i:i], append([]string{fmt.Sprintln("new", r.Intn(9))}, lines[i:]...)...)
		default:
			lines = append(lines[:i:i], lines[i+1:]...)
		}
	}
	return strings.Join(lines, "")
}
