package cli

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/agent/catalog"
	"github.com/pando-dev/pando/internal/secret"
)

// Bounds of what is read of a home: the daemon's, and those of a walk through it.
const (
	maxHomeFiles  = 512
	maxHomeBytes  = 4 << 20
	maxHomeFile   = 1 << 20
	maxPartedFile = 32 << 20 // of which a part comes along
	maxHomeDepth  = 8
	maxHomeNames  = 4096
)

// homeKinds reads the words of --with-home.
func homeKinds(words []string) ([]string, error) {
	var kinds []string
	for _, w := range words {
		switch {
		case w == "all":
			return agent.Kinds(), nil
		case !slices.Contains(agent.Kinds(), w):
			return nil, usage("--with-home takes %s, or all; not %s", strings.Join(agent.Kinds(), ", "), printable(w))
		}
		kinds = append(kinds, w)
	}
	return kinds, nil
}

// homeOf reads what of the user's home may come along into an agent's, of some kinds, and names
// what of it stays outside. It reads nothing that is not in the agent's list. The list's own files and
// folders, and a folder's entries, may be links to what lies in the home, too, as the user has made
// them; links below an entry, which can come from elsewhere with it, lead to what is in it.
func homeOf(home string, known agent.Adapter, kinds []string) (files []api.HomeFile, left []agent.Left, err error) {
	if home, err = filepath.EvalSymlinks(home); err != nil {
		return nil, nil, err
	}
	root, err := os.OpenRoot(home)
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	r := &homeReader{home: home, root: root}
	for _, b := range known.Brings() {
		if slices.Contains(kinds, b.Kind) {
			r.read(b, strings.TrimSuffix(b.Path, "/"), 0)
		}
	}
	return r.files, r.left, nil
}

type homeReader struct {
	home  string
	root  *os.Root
	files []api.HomeFile
	left  []agent.Left
	bytes int
	names int
	entry string // of a folder that is read, without links: what is below it comes from below it
}

func (r *homeReader) stays(p, why string) { r.left = append(r.left, agent.Left{Path: p, Why: why}) }

// read reads the file or the folder at a path below the home.
func (r *homeReader) read(b agent.Bring, p string, depth int) {
	if r.names++; r.names > maxHomeNames {
		if r.names == maxHomeNames+1 {
			r.stays(p, "too many files; all that follow, too")
		}
		return
	}
	at, err := filepath.EvalSymlinks(filepath.Join(r.home, p))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := r.root.Lstat(p); err == nil {
			r.stays(p, "a link that leads nowhere")
		}
		return
	}
	if err != nil {
		r.stays(p, reason(err))
		return
	}
	at, err = filepath.Rel(r.home, at)
	at = filepath.ToSlash(at)
	if err != nil || !filepath.IsLocal(at) {
		r.stays(p, "a link that leads out of your home")
		return
	}
	isFolder := strings.HasSuffix(b.Path, "/")
	switch {
	case isFolder && depth > 1 && !strings.HasPrefix(at, r.entry+"/"): // another may have written what is in it
		r.stays(p, "a link that leads out of "+path.Join(b.Path, strings.SplitN(strings.TrimPrefix(p, b.Path), "/", 2)[0]))
		return
	case at == p:
	case secret.Promises(at):
		r.stays(p, "a link to what holds secrets")
		return
	case at == "." || !b.Has(at) && ofAgents(at):
		r.stays(p, "a link to other files of an agent")
		return
	}
	f, err := r.root.OpenFile(at, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		r.stays(p, reason(err))
		return
	}
	defer f.Close()
	if depth == 1 {
		r.entry = at
	}
	st, err := f.Stat()
	switch {
	case err != nil:
		r.stays(p, reason(err))
	case st.IsDir() && isFolder:
		r.folder(b, p, f, depth)
	case !st.Mode().IsRegular() || isFolder && depth == 0:
		r.stays(p, "no file or folder")
	default:
		r.file(b, p, f, st)
	}
}

func (r *homeReader) folder(b agent.Bring, p string, f *os.File, depth int) {
	if d := secret.Decide(p, true, false, nil); d.Action == secret.LeaveOut {
		r.stays(p, d.Why)
		return
	}
	if depth == maxHomeDepth {
		r.stays(p, "too deep")
		return
	}
	names, err := f.Readdirnames(maxHomeNames)
	if err != nil && err != io.EOF {
		r.stays(p, reason(err))
		return
	}
	slices.Sort(names)
	for _, name := range names {
		if strings.HasPrefix(name, ".") {
			r.stays(path.Join(p, name), "hidden")
			continue
		}
		r.read(b, path.Join(p, name), depth+1)
	}
}

func (r *homeReader) file(b agent.Bring, p string, f *os.File, st fs.FileInfo) {
	limit := int64(maxHomeFile)
	if b.Take != nil {
		limit = maxPartedFile
	}
	if st.Size() > limit {
		r.stays(p, "more than "+size(limit))
		return
	}
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil || int64(len(content)) > limit {
		r.stays(p, "it can't be read")
		return
	}
	part, left := b.Part(p, content)
	r.left = append(r.left, left...)
	switch {
	case len(part) == 0:
		return
	case len(r.files) == maxHomeFiles || r.bytes+len(part) > maxHomeBytes:
		r.stays(p, "more than "+plural(maxHomeFiles, "file")+", or "+size(maxHomeBytes))
		return
	}
	r.bytes += len(part)
	r.files = append(r.files, api.HomeFile{Kind: b.Kind, Path: p, Content: part, Executable: st.Mode()&0o111 != 0})
}

// ofAgents reports whether a path of the home lies in the folder of an agent, or has one in it:
// logins and conversations are there.
func ofAgents(p string) bool {
	return slices.ContainsFunc(catalog.All(), func(known agent.Adapter) bool {
		folder := path.Dir(known.About().Memory)
		return strings.HasPrefix(p+"/", folder+"/") || strings.HasPrefix(folder, p+"/")
	})
}

// reason is an error without the path that it is about.
func reason(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	return err.Error()
}

// takeHome adds to a request what comes along of the user's home, and names what of it does not.
func (a *app) takeHome(of *api.AgentRequest, known agent.Adapter, words []string) ([]agent.Left, error) {
	kinds, err := homeKinds(words)
	if err != nil || len(kinds) == 0 {
		return nil, err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, err
	}
	files, left, err := homeOf(home, known, kinds)
	if err != nil {
		return nil, &api.Error{Kind: "not-found", Message: "cannot read your home: " + err.Error(), Hint: "set HOME, or leave out --with-home"}
	}
	of.Home = files
	return left, nil
}

// staysWords name what of the home stays outside.
func staysWords(left []agent.Left) string {
	var names []string
	for i, l := range left {
		if i == maxNamed {
			names = append(names, "…")
			break
		}
		names = append(names, printable(l.Path)+" ("+printable(l.Why)+")")
	}
	return strings.Join(names, ", ")
}
