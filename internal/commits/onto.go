package commits

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
)

// What is put onto others is bounded.
const (
	maxOnto    = 500      // commits
	maxCommit  = 1 << 20  // bytes of one, with its message
	maxCommits = 64 << 20 // bytes of all
)

// Ident is what git writes of a person into commits.
type Ident struct{ Name, Email string }

// line is the value of a commit's header (git-commit-tree(1), "Commit Information").
func (p Ident) line(at time.Time) string {
	clean := strings.NewReplacer("<", "", ">", "", "\n", "", "\x00", "").Replace
	return fmt.Sprintf("%s <%s> %d %s", clean(p.Name), clean(p.Email), at.Unix(), at.Format("-0700"))
}

// Onto is what a branch becomes that is at the commit head, "" without one, when it gets the commits that lead to tip: tip
// itself, where head is in its history, and else copies, on top of head, of those that lead there from base and are not in
// head's history, made by merge-tree as a rebase would, with committer. Commits of which head has all changes already are left out: it
// is head then if none is left. A change that both made in other words, and a merge among commits that would be copied, are a
// Conflict. With sign all are copies, and signed. The list is of what comes, oldest first.
func (r *Repo) Onto(ctx context.Context, tip, base, head string, committer Ident, sign Signer) (now string, list []Branch, err error) {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	if !slices.Contains(r.made, tip) {
		return "", nil, orConflict(nil, "%s was not made in the cell", short(tip))
	}
	if ok, err := r.leadsTo(ctx, base, tip); err != nil || !ok {
		return "", nil, orConflict(err, "they do not build on the commit %s, which the source had", short(base))
	}
	if head != "" {
		if ok, err := r.leadsTo(ctx, tip, head); err != nil || ok { // its own git brought them
			return head, nil, err
		}
	}
	ahead, err := r.leadsTo(ctx, head, tip)
	switch {
	case err != nil:
		return "", nil, err
	case ahead && sign == nil:
		list, err = r.between(ctx, tip, head)
		return tip, list, err
	case head == "":
		return "", nil, orConflict(nil, "the source has no commit yet that signed ones could follow")
	case base == "" && !ahead:
		return "", nil, orConflict(nil, "they begin a history of their own, and the source has one by now")
	}
	if list, err = r.between(ctx, tip, base, head); err != nil {
		return "", nil, err
	}
	if len(list) > maxOnto {
		return "", nil, bound.Exceed("what would be put onto "+short(head), maxOnto, "commits")
	}
	if committer.Name == "" || committer.Email == "" {
		return "", nil, cell.Errorf(cell.Conflict, "commits.Onto", "tell git yours: git config --global user.name NAME, and user.email ADDRESS", "cannot put the commits onto what the source became: git's configuration, without what it includes, has no name of a committer")
	}
	return r.copies(ctx, list, head, committer, sign)
}

// A Signer returns the signature of a commit, as lines of text.
type Signer func(ctx context.Context, commit string) (string, error)

// signature is the header with a signature, which comes last (git-commit-tree(1) has it made by a program: gpg.format). In a
// repository with ids of SHA-256 it has another name (gitformat-signature(5)).
func signature(text string, sha256 bool) string {
	name := "gpgsig "
	if sha256 {
		name = "gpgsig-sha256 "
	}
	return name + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n ") + "\n"
}

func orConflict(err error, format string, args ...any) error {
	if err != nil {
		return err
	}
	return cell.Errorf(cell.Conflict, "commits.Onto", "pando fetch brings them as branches of their own, which git merge and git rebase take", "cannot take the commits: "+format, args...)
}

func short(id string) string { return id[:min(len(id), 10)] }

// leadsTo reports whether a commit is in the history of tip; "" is in all.
func (r *Repo) leadsTo(ctx context.Context, commit, tip string) (bool, error) {
	if commit == "" || commit == tip {
		return true, nil
	}
	out, err := r.run(ctx, nil, "", "rev-list", "--max-count=1", commit, "^"+tip)
	return err == nil && len(out) == 0, err
}

// Came is a commit that came before, and what it became: itself, or a copy.
type Came struct{ Tip, Now string }

// Latest is the newest of the commits which came before that is in the history of tip, and of which the copy is in that of head;
// else it is first.
func (r *Repo) Latest(ctx context.Context, before []Came, first, tip, head string) (string, error) {
	for _, b := range slices.Backward(before) {
		has, err := r.Has(ctx, []string{b.Tip, b.Now})
		if err != nil {
			return "", err
		}
		if len(has) < 2 || head == "" {
			continue
		}
		ok, err := r.leadsTo(ctx, b.Tip, tip)
		if ok && err == nil {
			ok, err = r.leadsTo(ctx, b.Now, head)
		}
		if ok || err != nil {
			return b.Tip, err
		}
	}
	return first, nil
}

// between are the commits that lead to tip from others, "" for none, oldest first.
func (r *Repo) between(ctx context.Context, tip string, from ...string) (list []Branch, err error) {
	args := []string{"log", "--reverse", "--topo-order", "--no-color", "--no-decorate", "--no-show-signature", "--no-mailmap", "--format=%H %s", tip}
	for _, id := range from {
		if id != "" {
			args = append(args, "^"+id)
		}
	}
	out, err := r.run(ctx, nil, "", append(args, "--")...)
	for line := range strings.Lines(string(out)) {
		id, subject, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		list = append(list, Branch{Commit: id, Subject: cell.Clip(subject)})
	}
	return list, err
}

// copies makes copies of commits on top of head.
func (r *Repo) copies(ctx context.Context, list []Branch, head string, committer Ident, sign Signer) (now string, made []Branch, err error) {
	tree, err := r.treeOf(ctx, head)
	if err != nil {
		return "", nil, err
	}
	commits, err := r.parse(ctx, list)
	if err != nil {
		return "", nil, err
	}
	var texts []string
	now = head
	for _, c := range list {
		old := commits[c.Commit]
		if len(old.parents) != 1 {
			return "", nil, orConflict(nil, "%s (%s) has %d parents, and can't be put onto what the source became", short(c.Commit), c.Subject, len(old.parents))
		}
		before := commits[old.parents[0]].tree
		if before == "" {
			if before, err = r.treeOf(ctx, old.parents[0]); err != nil {
				return "", nil, err
			}
		}
		next, err := r.mergeTrees(ctx, before, tree, old.tree, c)
		if err != nil {
			return "", nil, err
		}
		if next == tree {
			continue
		}
		headers := "tree " + next + "\nparent " + now + "\nauthor " + old.author + "\ncommitter " + committer.line(time.Now()) + "\n" + old.encoding
		body := "\n" + old.message
		if sign != nil {
			s, err := sign(ctx, headers+body)
			if err != nil {
				return "", nil, err
			}
			headers += signature(s, len(head) == 64)
		}
		text := headers + body
		tree, now = next, objectID("commit", text, len(head))
		texts, made = append(texts, text), append(made, Branch{Commit: now, Was: c.Commit, Subject: c.Subject})
	}
	return now, made, r.write(ctx, texts...)
}

// mergeTrees is what a tree becomes, ours, by a change from before to theirs. merge-tree takes the base from histories:
// these get one that is made for it.
func (r *Repo) mergeTrees(ctx context.Context, before, ours, theirs string, c Branch) (string, error) {
	const by = "author pando <> 0 +0000\ncommitter pando <> 0 +0000\n\n\n"
	base := "tree " + before + "\n" + by
	parent := "parent " + objectID("commit", base, len(before)) + "\n"
	one, two := "tree "+ours+"\n"+parent+by, "tree "+theirs+"\n"+parent+by
	if err := r.write(ctx, base, one, two); err != nil {
		return "", err
	}
	out, no, err := r.ask(ctx, nil, nil, "merge-tree", "--write-tree", "--no-messages", "--name-only", "-z", objectID("commit", one, len(before)), objectID("commit", two, len(before)))
	if err != nil {
		return "", err
	}
	parts := strings.Split(strings.TrimRight(string(out), "\x00"), "\x00")
	if no != "" {
		return "", orConflict(nil, "%s (%s) changes what the source changed, too, in %s", short(c.Commit), c.Subject, cell.Clip(strings.Join(parts[min(1, len(parts)):], ", ")))
	}
	return parts[0], nil
}

// parsed is a commit.
type parsed struct {
	tree, author, message string
	encoding              string // the header, with its end of line; "" for none
	parents               []string
}

// parse reads commits. A signature, and what else their headers say, is left out: it is of what they were, and not of copies.
func (r *Repo) parse(ctx context.Context, list []Branch) (map[string]parsed, error) {
	out := map[string]parsed{}
	var ids []string
	for _, c := range list {
		ids = append(ids, c.Commit)
	}
	var sum int64
	err := r.Read(ctx, ids, func(_, id string, size int64, in io.Reader) error {
		if sum += size; size > maxCommit || sum > maxCommits {
			return bound.Exceed("the commits, or commit "+short(id), maxCommit, "bytes")
		}
		raw, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		headers, message, _ := strings.Cut(string(raw), "\n\n")
		p := parsed{message: message}
		for line := range strings.Lines(headers) {
			switch key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " "); key {
			case "tree":
				p.tree = value
			case "parent":
				p.parents = append(p.parents, value)
			case "author":
				p.author = value
			case "encoding":
				p.encoding = "encoding " + value + "\n"
			}
		}
		out[id] = p
		return nil
	})
	return out, err
}

// objectID is the id of an object (gitformat-pack(5)), of the length of others there.
func objectID(kind, text string, length int) string {
	all := fmt.Appendf(nil, "%s %d\x00%s", kind, len(text), text)
	if length == 2*sha256.Size {
		return fmt.Sprintf("%x", sha256.Sum256(all))
	}
	return fmt.Sprintf("%x", sha1.Sum(all))
}

// treeOf is the tree of a commit.
func (r *Repo) treeOf(ctx context.Context, commit string) (string, error) {
	out, err := r.run(ctx, nil, "", "rev-parse", "--verify", "--end-of-options", commit+"^{tree}")
	return strings.TrimSpace(string(out)), err
}

// write makes commits of their texts.
func (r *Repo) write(ctx context.Context, texts ...string) error {
	dir, err := os.MkdirTemp(r.folder, "write-")
	if err != nil || len(texts) == 0 {
		return err
	}
	defer os.RemoveAll(dir)
	var names strings.Builder
	for i, text := range texts {
		name := filepath.Join(dir, strconv.Itoa(i))
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return err
		}
		names.WriteString(name + "\n")
	}
	_, err = r.run(ctx, strings.NewReader(names.String()), "", "hash-object", "-t", "commit", "-w", "--no-filters", "--stdin-paths")
	return err
}

// Changed is a path at which two commits differ.
type Changed struct {
	Path     string
	Was, Now Object
}

// Object is what a commit has at a path.
type Object struct {
	Mode string // "100644", "100755", "120000" a link, "160000" a submodule; "" nothing is there
	ID   string
}

// Changes are the paths at which the commit now differs from was, "" for one without files, in git's order.
func (r *Repo) Changes(ctx context.Context, was, now string) (list []Changed, err error) {
	if was == "" {
		all, err := r.Files(ctx, now)
		for _, p := range slices.Sorted(maps.Keys(all)) {
			list = append(list, Changed{Path: p, Now: all[p]})
		}
		return list, err
	}
	out, err := r.run(ctx, nil, "", "diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", "--ignore-submodules=none", was, now)
	object := func(mode, id string) Object {
		if mode == "000000" {
			return Object{}
		}
		return Object{mode, id}
	}
	parts := strings.Split(string(out), "\x00")
	for i := 0; i+1 < len(parts); i += 2 { // two modes, two ids, a letter; then the path
		f := strings.Fields(strings.TrimPrefix(parts[i], ":"))
		if len(f) != 5 {
			return nil, cell.Errorf(cell.Internal, "commits.Changes", "", "cannot read git's line %q", parts[i])
		}
		list = append(list, Changed{parts[i+1], object(f[0], f[2]), object(f[1], f[3])})
	}
	return list, err
}

// Files are the files of a commit, by path.
func (r *Repo) Files(ctx context.Context, commit string) (map[string]Object, error) {
	out, err := r.run(ctx, nil, "", "ls-tree", "-r", "-z", "--full-tree", commit)
	files := map[string]Object{}
	for line := range strings.SplitSeq(string(out), "\x00") {
		if facts, path, ok := strings.Cut(line, "\t"); ok { // mode, kind, id
			if f := strings.Fields(facts); len(f) == 3 {
				files[path] = Object{f[0], f[2]}
			}
		}
	}
	return files, err
}

// Index is an index that was of the commit was, "" for none, as it is of the commit now: entries that differ between
// the two are replaced, and all others stay as they are. It fails if something is staged: entries that were not of was.
func (r *Repo) Index(ctx context.Context, index []byte, was, now string) ([]byte, error) {
	at := filepath.Join(r.folder, "index")
	if err := os.Remove(at); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	if len(index) > 0 {
		if err := os.WriteFile(at, index, 0o600); err != nil {
			return nil, err
		}
	}
	env := []string{"GIT_INDEX_FILE=" + at}
	is, to := []string{"diff-index", "--cached", "--quiet", was, "--"}, []string{"read-tree", "-i", "-m", was, now}
	if was == "" {
		is, to = []string{"ls-files", "--cached"}, []string{"read-tree", "-i", "-m", now}
	}
	if out, no, err := r.ask(ctx, nil, env, is...); err != nil {
		return nil, err
	} else if no != "" || len(out) > 0 {
		return nil, cell.Errorf(cell.Conflict, "commits.Index", "commit it, or take it out: git restore --staged .", "something is staged in the source, which would no longer be told from the commits")
	}
	if _, no, err := r.ask(ctx, nil, env, to...); err != nil {
		return nil, err
	} else if no != "" {
		return nil, cell.Errorf(cell.Conflict, "commits.Index", "", "git read-tree: %s", no)
	}
	return os.ReadFile(at)
}
