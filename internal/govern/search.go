package govern

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

const (
	// ignoredBudget is how many bytes of files that git ignores are searched
	// after a run. What git would see is searched whatever it costs.
	ignoredBudget = 1 << 30
	// foldersBudget is how many bytes of changed files in a cell's home and /tmp are.
	foldersBudget = 256 << 20
	// inflateBudget is how many bytes of what is compressed are unpacked for
	// it, in all.
	inflateBudget = 1 << 30
	// foundLimit is how many places are listed; more are counted.
	foundLimit = 100
)

// Search looks for the values of the credentials that a cell has had.
type Search struct {
	m *Manager
	c *state.Cell
	state.Secrets
	scanner  *credential.Scanner
	handles  []string
	unpack   int64
	unpacked map[string]int // why something compressed was not searched → how many
}

// SearchFor returns a search for what was lent to a cell or to one that it was
// forked from, taken back or not; nil when nothing ever was.
func (m *Manager) SearchFor(c *state.Cell) *Search {
	values := map[string]credential.Secret{}
	s := &Search{m: m, c: c, unpack: inflateBudget, unpacked: map[string]int{}}
	s.Lent, s.Scanned, s.Found, s.NotScanned = []state.SecretLent{}, []string{}, []state.SecretFound{}, []string{}
	for id, itself := c.ID, true; id != ""; itself = false {
		for _, l := range m.cfg.Records.Lendings(id) {
			if _, ok := values[l.Handle]; ok {
				continue
			}
			known, secret, err := m.cfg.Credentials.Get(l.Handle)
			if err != nil {
				s.NotScanned = append(s.NotScanned, "anything for the value of "+l.Handle+": it is not stored any more")
			} else if known.Kind == credential.Token {
				values[l.Handle] = secret
			}
			if itself {
				s.Lent = append(s.Lent, state.SecretLent{Credential: l.Handle, Kind: known.Kind, For: append([]string{}, slices.Concat(known.For, alsoFor(known))...), Revoked: !l.Revoked.IsZero()})
			}
			s.handles = append(s.handles, l.Handle)
		}
		up, err := m.cfg.Records.Cell(id)
		if err != nil || up.Parent == nil || len(s.handles) > 1000 {
			break
		}
		id = up.Parent.Cell
	}
	if len(s.handles) == 0 {
		return nil
	}
	s.scanner = credential.NewScanner(values)
	return s
}

func alsoFor(c credential.Credential) (list []string) {
	for _, u := range c.Also {
		list = append(list, u.For...)
	}
	return list
}

// read searches one text.
func (s *Search) read(ctx context.Context, in, path string, r io.Reader) error {
	found, gap, err := s.scanner.Read(ctx, r, &s.unpack)
	if err != nil {
		return err
	}
	if gap != "" {
		s.unpacked[gap]++
	}
	s.add(in, path, found)
	return nil
}

func (s *Search) add(in, path string, found []credential.Found) {
	for _, f := range found {
		if len(s.Found) == foundLimit {
			s.More++
			continue
		}
		s.Found = append(s.Found, state.SecretFound{In: in, Path: s.m.cfg.Redactor.String(path), Credential: f.Credential, Encoding: f.Encoding})
	}
}

// text searches something short, such as a name.
func (s *Search) text(in, path, text string) {
	st := s.scanner.Stream()
	io.WriteString(st, text)
	s.add(in, path, st.Found())
}

// Run searches what a run left behind: what it changed from one tree to another state, in the
// cell's home and /tmp, and in what is kept of it. The run gets what was found, and notes.
func (s *Search) Run(ctx context.Context, run *state.Run, from *workspace.Tree, to workspace.Side) error {
	began := time.Now()
	if err := s.changes(ctx, from, to, ignoredBudget); err != nil {
		return err
	}
	if err := s.folders(ctx, run.Started); err != nil {
		return err
	}
	if err := s.records(ctx, run); err != nil {
		return err
	}
	s.NotScanned = append(s.NotScanned, "what is encrypted, or encoded in a way that is not known", "memory of processes that go on")
	for why, n := range s.unpacked {
		s.NotScanned = append(s.NotScanned, fmt.Sprintf("what is packed in %d of the files: %s", n, why))
	}
	slices.Sort(s.NotScanned)
	s.TookMS = float64(time.Since(began).Microseconds()) / 1000
	run.Secrets = &s.Secrets
	run.Notes = append(run.Notes, s.notes(run.ID)...)
	return nil
}

// notes tells people what was found. That the patch has what a file has goes
// without saying.
func (s *Search) notes(run string) (list []string) {
	more := s.More
	for _, f := range s.Found {
		switch {
		case f.In == "patch" && s.Found[0].In == "workspace":
		case len(list) == 5:
			more++
		default:
			list = append(list, "SECRET FOUND: the value of "+f.Credential+" is in "+f.Place()+" ("+f.Encoding+"); change it, since it can be read there")
		}
	}
	if more > 0 {
		list = append(list, fmt.Sprintf("SECRET FOUND in %d more places: pando receipt show %s", more, run))
	}
	return list
}

// changes searches the files that differ from one tree to another state, their
// names, link targets and attributes. Of files that git does not see, at most
// budget bytes are read.
func (s *Search) changes(ctx context.Context, from *workspace.Tree, to workspace.Side, budget int64) error {
	changes, err := workspace.Changes(from, to.Tree)
	if err != nil {
		return err
	}
	var files, left int
	var bytes, leftBytes int64
	for _, c := range changes {
		if c.New == nil {
			continue
		}
		s.text("workspace", c.Path, c.Path+"\n"+c.New.Target)
		for _, x := range c.New.XAttrs {
			s.text("workspace", c.Path, x.Name+"="+x.Value)
		}
		if c.New.Type != workspace.File || c.Meta() {
			continue
		}
		if !c.Git() {
			if budget < c.New.Size {
				left, leftBytes = left+1, leftBytes+c.New.Size
				continue
			}
			budget -= c.New.Size
		}
		if err := s.file(ctx, to, c); err != nil {
			return err
		}
		files, bytes = files+1, bytes+c.New.Size
	}
	s.Scanned = append(s.Scanned, fmt.Sprintf("workspace: %d changed files, %s", files, policy.FormatSize(bytes)))
	if left > 0 {
		s.NotScanned = append(s.NotScanned, fmt.Sprintf("%d changed files that git does not see, %s", left, policy.FormatSize(leftBytes)))
	}
	return nil
}

func (s *Search) file(ctx context.Context, side workspace.Side, c workspace.Change) error {
	r, err := side.Contents.Open(c.Path, *c.New)
	if err != nil {
		return err
	}
	defer r.Close()
	text, err := workspace.Shortened(ctx, r)
	if err != nil {
		return err
	}
	return s.read(ctx, "workspace", c.Path, text)
}

// folders searches what changed in the cell's home and /tmp since a run started: agents keep
// their transcripts there.
func (s *Search) folders(ctx context.Context, started time.Time) error {
	budget := int64(foldersBudget)
	var files, left, unread int
	var why error // of the first that can't be read
	lost := func(err error) {
		if os.IsNotExist(err) { // gone meanwhile
			return
		}
		if unread++; why == nil {
			why = err
		}
	}
	for _, m := range s.c.Setup.Mounts {
		in := map[cell.Role]string{cell.RoleHome: state.InHome, cell.RoleTmp: state.InTmp}[m.Role]
		if in == "" {
			continue
		}
		root, err := workspace.OpenRoot(s.m.cfg.OwnDir(s.c, m.Role))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		err = workspace.WalkAll(ctx, root, func(_ string, found []workspace.Found, err error) (map[string]bool, error) {
			if err != nil {
				lost(err)
			}
			for i := range found {
				f := &found[i]
				s.text(in, f.Path, f.Path)
				// The kernel sets the time of change; a cell can't.
				if f.Type() != workspace.File || time.Unix(0, f.Stat.CTime).Before(started.Add(-time.Second)) {
					continue
				}
				if f.Stat.Size > budget {
					left++
					continue
				}
				budget -= f.Stat.Size
				read, err := s.single(ctx, root, in, f)
				if err != nil {
					return nil, err
				}
				if read != nil {
					lost(read)
					continue
				}
				files++
			}
			return nil, nil
		})
		root.Close()
		if err != nil {
			return err
		}
	}
	s.Scanned = append(s.Scanned, fmt.Sprintf("home and /tmp: %d changed files", files))
	if left > 0 {
		s.NotScanned = append(s.NotScanned, fmt.Sprintf("%d changed files in home and /tmp: they are beyond %s in all", left, policy.FormatSize(foldersBudget)))
	}
	if unread > 0 {
		s.NotScanned = append(s.NotScanned, fmt.Sprintf("%d files or folders in home and /tmp: they can't be read: %s", unread, unnamed(why)))
	}
	return nil
}

// unnamed is an error without the path that it is about, which may hold a secret.
func unnamed(err error) string {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err.Error()
	}
	return string(cell.KindOf(err))
}

// single searches one file of home or /tmp. It may be another thing by
// now, and the cell may have made it. unread says why it can't be read.
func (s *Search) single(ctx context.Context, root *linux.Dir, in string, f *workspace.Found) (unread, err error) {
	fd, err := root.Open(f.Path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW)
	if err != nil {
		return err, nil
	}
	file := os.NewFile(uintptr(fd), linux.Abridged(f.Path))
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err, nil
	}
	return nil, s.read(ctx, in, f.Path, io.LimitReader(file, info.Size()))
}

// records searches what is kept of a run, and counts on the way how often each credential was
// used.
func (s *Search) records(ctx context.Context, run *state.Run) error {
	for _, name := range s.m.cfg.SealedFiles() {
		f, err := s.m.cfg.OpenRecord(run.Folder, name)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		var text io.Reader = f
		if name == "patch" {
			text = &patchText{in: bufio.NewReaderSize(f, 64<<10)}
		}
		err = s.read(ctx, name, "", text)
		if err == nil && name == "events.jsonl" {
			s.countUses(f)
		}
		f.Close()
		if err != nil {
			return err
		}
		s.Scanned = append(s.Scanned, name)
	}
	for name, o := range map[string]state.Output{"stdout": run.Output.Stdout, "stderr": run.Output.Stderr} {
		if o.Bytes > o.Kept {
			s.NotScanned = append(s.NotScanned, fmt.Sprintf("%s of %s that were not kept", policy.FormatSize(o.Bytes-o.Kept), name))
		}
	}
	about, err := json.Marshal(run.API()) // what the receipt says is said here
	if err != nil {
		return err
	}
	s.text("receipt", "", string(about))
	s.Scanned = append(s.Scanned, "receipt")
	return nil
}

// patchText is a patch without the content of binary files, in an encoding that
// is git's alone: it was searched in the files themselves.
type patchText struct {
	in       *bufio.Reader
	line     []byte // read and not given
	inside   bool   // of a line that was longer than the buffer
	skipping bool
}

func (p *patchText) Read(b []byte) (int, error) {
	for len(p.line) == 0 {
		line, err := p.in.ReadSlice('\n')
		if len(line) == 0 && err != nil {
			return 0, err
		}
		if !p.inside { // what a file holds begins with a space, + or -
			if bytes.HasPrefix(line, []byte("diff --git ")) {
				p.skipping = false
			} else if bytes.Equal(line, []byte("GIT binary patch\n")) {
				p.skipping = true
			}
		}
		p.inside = err == bufio.ErrBufferFull
		if !p.skipping {
			p.line = line
		}
	}
	n := copy(b, p.line)
	p.line = p.line[n:]
	return n, nil
}

// countUses counts the requests that credentials were put into, and the
// signatures of keys, in a run's events.
func (s *Search) countUses(f *os.File) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return
	}
	uses := map[string]int64{}
	in := bufio.NewReaderSize(f, 64<<10)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			break
		}
		var ev struct {
			Kind   string          `json:"kind"`
			Fields json.RawMessage `json:"fields"`
		}
		if json.Unmarshal(line, &ev) != nil {
			continue
		}
		switch ev.Kind {
		case "flow":
			var flow cell.Flow
			if json.Unmarshal(ev.Fields, &flow) == nil && flow.Secret != "" {
				uses[flow.Secret]++
			}
		case "decision":
			var d cell.Decided
			if json.Unmarshal(ev.Fields, &d) == nil && d.Access.Act == cell.Sign && d.Decision.Allowed() {
				uses[d.Decision.Credential] += max(d.Count, 1)
			}
		}
	}
	for i := range s.Lent {
		s.Lent[i].Uses = uses[s.Lent[i].Credential]
	}
}

// RefuseSecrets refuses to bring changes out of a cell that have the value of a credential in
// them: an earlier run, a command or a person may have put it there. what says which changes.
// ignored are files that git ignores: they come along, too.
func (m *Manager) RefuseSecrets(ctx context.Context, c *state.Cell, what string, from *workspace.Tree, to workspace.Side, ignored bool) error {
	s := m.SearchFor(c)
	if s == nil {
		return nil
	}
	var budget int64
	if ignored {
		budget = math.MaxInt64
	}
	if err := s.changes(ctx, from, to, budget); err != nil {
		return err
	}
	for _, f := range s.Found {
		return cell.Errorf(cell.Denied, "govern.RefuseSecrets", "take it out and try again; to apply it all the same: --force --reason TEXT",
			"cannot apply %s: the value of the credential %s is in %s (%s)", what, f.Credential, f.Path, f.Encoding)
	}
	return nil
}

// SecretsIn returns a function that refuses a text, from a place that it names, with the value of a credential in it that
// the cell was lent; nil when there is none.
func (m *Manager) SecretsIn(ctx context.Context, c *state.Cell) func(place string, r io.Reader) error {
	s := m.SearchFor(c)
	if s == nil {
		return nil
	}
	return func(place string, r io.Reader) error {
		if err := s.read(ctx, "commits", place, r); err != nil || len(s.Found) == 0 {
			return err
		}
		f := s.Found[0]
		return cell.Errorf(cell.Denied, "govern.SecretsIn", "take it out of the commits there; to take them all the same: pando accept "+c.Title()+" --commits --force --reason TEXT",
			"cannot take the commits of cell %s: the value of the credential %s is in %s (%s)", c.Title(), f.Credential, f.Path, f.Encoding)
	}
}
