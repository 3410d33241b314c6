package result

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/glob"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// What is pinned is, where a result is checked, as it was before the run: a result must not change what judges it. All is decided on
// trees, so that no path is resolved through a link of the result, and the keeper writes the difference into the fork of the check.

// Pinned is a state with what is pinned as it was before.
type Pinned struct {
	To      *workspace.Tree
	Changed []string // paths that were brought back, sorted
	left    []string // of kinds that an archive can't bring
}

// Pin brings what is pinned in a state back to what it was before. A pin is a path, a folder with what is below it, or a pattern.
// Links on the way to a path are pinned as well, with what they led to before.
func Pin(before, after *workspace.Tree, pins []string) (*Pinned, error) {
	all := slices.Clone(pins)
	var exact []string // links, and where a path leads through them; without what is below
	for i := 0; i < len(all) && len(all) < maxPinned; i++ {
		links, target, err := through(before, literal(all[i]))
		if err != nil {
			return nil, err
		}
		exact = append(exact, links...)
		if target != "" && !slices.Contains(all, target) {
			if rest := strings.TrimPrefix(clean(all[i]), literal(all[i])); rest != "" {
				target += rest
			}
			all = append(all, target)
		}
	}
	changes, err := workspace.Changes(after, before)
	if err != nil {
		return nil, err
	}
	ed := after.Edit()
	p := &Pinned{}
	for _, ch := range changes { // Old is what the result has, New what was before
		hit := ch.Path != "" && (slices.Contains(exact, ch.Path) || slices.ContainsFunc(all, func(pin string) bool {
			return glob.Below(pin, ch.Path) || leads(after, &ch, pin)
		}))
		if !hit {
			continue
		}
		if err := workspace.Take(ed, before, ch.Path); err != nil {
			return nil, err
		}
		if shown(&ch) {
			p.Changed = append(p.Changed, ch.Path)
		}
		if ch.New != nil && ch.New.Type != workspace.File && ch.New.Type != workspace.Folder && ch.New.Type != workspace.Symlink {
			p.left = append(p.left, ch.Path)
		}
	}
	slices.Sort(p.Changed)
	p.To, err = ed.Commit()
	return p, err
}

// maxPinned bounds the paths that pins lead to.
const maxPinned = 1000

// shown reports whether a change is one that a person means: a folder of which the time alone differs is none.
func shown(ch *workspace.Change) bool {
	return !ch.Meta() || ch.Old.Mode != ch.New.Mode || !slices.Equal(ch.Old.XAttrs, ch.New.XAttrs)
}

func clean(pin string) string { return path.Clean(pin) }

// literal is the part of a pin before the first name with a *.
func literal(pin string) string {
	pin = clean(pin)
	head, _, is := strings.Cut(pin, "*")
	if !is {
		return pin
	}
	i := strings.LastIndexByte(head, '/')
	return head[:max(i, 0)]
}

// through follows a path to its first link: the link itself, and where the path leads from there, if that is in the workspace.
func through(t *workspace.Tree, p string) (links []string, target string, err error) {
	for i := 0; i <= len(p); i++ {
		if i < len(p) && p[i] != '/' || i == 0 {
			continue
		}
		e, err := t.Lookup(p[:i])
		if cell.KindOf(err) == cell.NotFound {
			return nil, "", nil
		}
		if err != nil {
			return nil, "", err
		}
		if e.Type != workspace.Symlink {
			continue
		}
		links = append(links, p[:i])
		if to, ok := within(p[:i], e.Target); ok {
			return links, path.Join(to, p[i:]), nil
		}
		return links, "", nil
	}
	return nil, "", nil
}

// within is where a link leads, if that is a path in the workspace.
func within(link, target string) (string, bool) {
	if path.IsAbs(target) {
		return "", false
	}
	to := path.Join(path.Dir(link), target)
	return to, to != "." && to != ".." && !strings.HasPrefix(to, "../")
}

// leads reports whether a link that the result has put somewhere could bring something under a name that is pinned: it is on the way
// to it, or, of a pattern, it leads to more than one file.
func leads(after *workspace.Tree, ch *workspace.Change, pin string) bool {
	if ch.Old == nil || ch.Old.Type != workspace.Symlink {
		return false
	}
	lit := literal(pin)
	if strings.HasPrefix(lit, ch.Path+"/") || lit == ch.Path {
		return true
	}
	if !strings.Contains(pin, "*") || lit != "" && lit != "." && !strings.HasPrefix(ch.Path, lit+"/") {
		return false
	}
	to, ok := within(ch.Path, ch.Old.Target)
	if !ok {
		return true
	}
	e, err := after.Lookup(to)
	return err != nil || e.Type != workspace.File
}

// BringBack writes what was pinned into the living fork in which a result is checked.
func (p *Pinned) BringBack(ctx context.Context, inst backend.Instance, c *state.Cell, before, after workspace.Side) error {
	if len(p.left) > 0 {
		return cell.Errorf(cell.Unsupported, "result.Pin", "pin files, folders and links", "cannot bring back %s, which was a special file", cell.Clip(p.left[0]))
	}
	return change(ctx, inst, c, after.Tree, p.To, before.Contents, true)
}

// Judges are the programs and scripts of the workspace that a shell command runs and a result has changed: what judges it, and is not
// as it was. They are looked for by the words of the command; what a shell makes of variables, and what a script goes on to read, is
// not known. at is the folder of the workspace that the command runs in.
func Judges(before, after *workspace.Tree, command, top, at string) ([]string, error) {
	var out []string
	for _, w := range programs(command) {
		if path.IsAbs(w) {
			rest, ok := strings.CutPrefix(w, strings.TrimSuffix(top, "/")+"/")
			if !ok {
				continue
			}
			w = path.Clean(rest)
		} else {
			w = path.Join(at, w)
		}
		if w == "." || w == ".." || strings.HasPrefix(w, "../") || strings.Contains(w, "*") {
			continue
		}
		if links, to, err := through(before, w); err != nil {
			return nil, err
		} else if len(links) == 0 || to == "" {
			e, err := before.Lookup(w)
			if cell.KindOf(err) == cell.NotFound || err == nil && e.Type == workspace.Folder {
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		p, err := Pin(before, after, []string{w})
		if err != nil {
			return nil, err
		}
		for _, c := range p.Changed {
			if !slices.Contains(out, c) && len(out) < maxJudges {
				out = append(out, c)
			}
		}
	}
	return out, nil
}

// maxJudges bounds the programs of a check that are named, and the words that are looked at.
const maxJudges = 100

// interpreters run the script that their first operand names.
var interpreters = []string{"sh", "bash", "dash", "ksh", "zsh", "ash", "python", "python3", "node", "ruby", "perl", "php", "deno", "bun", "lua", "Rscript", "source", "."}

// wrappers run the command that follows them.
var wrappers = []string{"exec", "env", "time", "command", "nice", "nohup", "!", "then", "do", "else", "if", "while", "until", "{", "timeout", "sudo", "run"}

// programs are the words of a shell command that name what is run: the first of each command in it, and the script of an interpreter.
func programs(command string) (out []string) {
	var word strings.Builder
	has, first, script, quote := false, true, false, rune(0)
	end := func() {
		w := word.String()
		word.Reset()
		if !has {
			return
		}
		has = false
		assigns := strings.IndexByte(w, '=')
		switch {
		case len(out) >= maxJudges:
		case (first || script) && (slices.Contains(wrappers, w) || strings.HasPrefix(w, "-") || assigns > 0 && !strings.Contains(w[:assigns], "/")):
		case (first || script) && strings.Trim(w, "0123456789.smhd") == "" && w != ".": // the time of timeout
		case first && slices.Contains(interpreters, path.Base(w)):
			first, script = false, true
		case first || script:
			out = append(out, w)
			first, script = false, false
		}
	}
	for i, r := range command {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"' || r == '`'):
			quote, has = r, true
		case quote == 0 && strings.ContainsRune(";&|\n)", r), quote == 0 && r == '(' && !strings.HasSuffix(command[:i], "$"):
			end()
			first, script = true, false
		case quote == 0 && (r == ' ' || r == '\t' || r == '<' || r == '>'):
			end()
		default:
			word.WriteRune(r)
			has = true
		}
	}
	end()
	return out
}
