package govern

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/policy"
)

// ProjectPolicy is the name of a project's policy file, at the top of its
// source. It is repository content: it counts only after the user has allowed
// its digest.
const ProjectPolicy = "pando.policy.yaml"

// Effective is the policy of a run, with what made it.
type Effective struct {
	policy.Result
	Layers []api.PolicyLayer
	Notes  []string // what is there and not in force
}

// Effective merges the layers of policies: of the host, of the user, of
// the project at source ("" for none), and of the run itself. said are the origins of what the
// caller has added to the request, as policy.Flags has them.
func (m *Manager) Effective(req api.RunRequest, source string, said map[string]string) (*Effective, error) {
	out := &Effective{}
	var layers []policy.Layer
	add := func(layer, name string, text []byte) error {
		f, err := policy.ParseFile(name, text)
		if err != nil {
			return err
		}
		layers = append(layers, policy.Layer{Name: layer, File: f})
		out.Layers = append(out.Layers, api.PolicyLayer{Layer: layer, File: name, Digest: cell.Sum(text).String()})
		return nil
	}
	if err := m.standingLayers(add); err != nil {
		return nil, err
	}
	text, note, err := m.projectPolicy(source)
	switch {
	case err != nil:
		return nil, err
	case note != "":
		out.Notes = append(out.Notes, note)
	case text != nil:
		if err := add(policy.LayerProject, ProjectPolicy, text); err != nil {
			return nil, err
		}
	}
	if req.Policy != "" || req.PolicyName != "" { // an empty file is no policy, and not none
		if err := add(policy.LayerRun, cmp.Or(req.PolicyName, "policy"), []byte(req.Policy)); err != nil {
			return nil, err
		}
	}
	out.Result, err = policy.MergeLayers(policy.Defaults(m.cfg.Host), layers, policy.Flags{
		Mounts: req.Mounts, ReadOnly: req.ReadOnly, Env: req.Env, Secrets: req.WithSecret,
		Limits: policy.FileLimits(req.Limits), Allow: req.Allow, Credentials: req.Credentials, Said: saidBy(req, said),
	})
	if err != nil {
		return nil, err
	}
	for _, h := range out.Handles() {
		known, _, err := m.cfg.Credentials.Get(h)
		if err != nil {
			return nil, cannotLend(h, err)
		}
		var places []string
		for _, l := range known.Lend("", credential.Secret{}) {
			places = append(places, l.For...)
		}
		if err := out.Lend(h, places); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// saidBy adds to some origins those of the defaults in a request.
func saidBy(req api.RunRequest, said map[string]string) map[string]string {
	out := map[string]string{}
	for _, d := range req.Defaults {
		for _, v := range d.Values {
			switch d.Key {
			case "allow", "credential", "mount", "with-secret":
				out[d.Key+" "+v] = policy.OriginConfig + d.Key + " " + v
			case "env":
				v, _, _ = strings.Cut(v, "=")
				out["env "+v] = policy.OriginConfig + "env " + v
			case "cpus", "memory", "pids", "read-only", "disk", "timeout", "budget":
				out[d.Key] = policy.OriginConfig + d.Key
			}
		}
	}
	maps.Copy(out, said)
	return out
}

// RefuseHost refuses a policy that reaches the daemon's machine. It is for callers that may name
// nothing of that.
func RefuseHost(r *policy.Result) error {
	if h := r.Network.ReachesHost(); h != "" {
		return cell.Errorf(cell.Denied, "govern.RefuseHost", "use a token of scope admin without labels", "cannot allow %s: what listens there is the daemon's host's", h)
	}
	return nil
}

// maxPolicy bounds what is read of a policy file.
const maxPolicy = 1 << 20

// readPolicy reads a policy file of the host or the user. Others must not be
// able to write to it.
func readPolicy(path string, ofHost bool) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		if errors.Is(err, syscall.ENOTDIR) {
			return nil, fs.ErrNotExist
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, cell.Errorf(cell.Denied, "govern.readPolicy", "make the file readable (chmod), or delete it", "cannot read policy %s: %w", path, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	owner, mine := st.Sys().(*syscall.Stat_t).Uid, uint32(os.Geteuid())
	switch {
	case !st.Mode().IsRegular():
		return nil, cell.Errorf(cell.Invalid, "govern.readPolicy", "put a file there", "cannot read policy %s: it is no regular file", path)
	case st.Mode().Perm()&0o022 != 0:
		return nil, cell.Errorf(cell.Denied, "govern.readPolicy", "run chmod go-w "+path, "cannot trust policy %s: others can write to it", path)
	case owner != 0 && (ofHost || owner != mine):
		return nil, cell.Errorf(cell.Denied, "govern.readPolicy", "run chown root "+path, "cannot trust policy %s: it belongs to user %d", path, owner)
	}
	return readAllPolicy(f, path)
}

func readAllPolicy(r io.Reader, path string) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxPolicy+1))
	if err == nil && len(b) > maxPolicy {
		err = cell.Errorf(cell.Invalid, "govern.readPolicy", "", "cannot read policy %s: it has more than %s", path, policy.FormatSize(maxPolicy))
	}
	return b, err
}

// projectPolicy reads the policy of the project at source, if it counts. Note
// says why one that is there does not.
func (m *Manager) projectPolicy(source string) (text []byte, note string, err error) {
	if source == "" {
		return nil, "", nil
	}
	path := filepath.Join(source, ProjectPolicy)
	text, err = readProject(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, "", nil
	}
	if err != nil {
		return nil, ProjectPolicy + " is there and not in force: " + err.Error(), nil
	}
	allowed, err := m.allowedPolicies()
	if err != nil {
		return nil, "", err
	}
	a, ok := allowed[path]
	switch {
	case !ok:
		return nil, ProjectPolicy + " is there and not in force: look at it, then `pando policy allow`", nil
	case a.Digest != cell.Sum(text):
		return nil, ProjectPolicy + " has changed since you allowed it, and is not in force: look at it, then `pando policy allow`", nil
	}
	return text, "", nil
}

// readProject reads a file of a project, which could be anything.
func readProject(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, errors.New("it is a symlink")
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.New("it is no regular file")
	}
	return readAllPolicy(f, path)
}

// allowedPolicy is the record of a project's file that the user allowed.
type allowedPolicy struct {
	Digest cell.Digest `json:"digest"`
	At     time.Time   `json:"at"`
}

// allowedPolicies reads which files the user allowed, by path. Damage is an
// error: without the records nothing that was allowed counts, and nothing would
// say why.
func (m *Manager) allowedPolicies() (map[string]allowedPolicy, error) {
	out := map[string]allowedPolicy{}
	b, err := os.ReadFile(m.cfg.Home.Allowed())
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		return nil, cell.Errorf(cell.Corrupt, "govern.allowedPolicies", "take the file away, and allow your projects' policies again",
			"cannot read which policies you allowed (%s): %w", m.cfg.Home.Allowed(), err)
	}
	return out, nil
}

// Allow records the digest of a project's policy file as trusted, or takes that back.
func (m *Manager) Allow(req api.PolicyAllowRequest) (api.PolicyAllowed, error) {
	const op = "govern.AllowPolicy"
	path := req.Path
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		path = filepath.Join(path, ProjectPolicy)
	}
	if !filepath.IsAbs(path) {
		return api.PolicyAllowed{}, cell.Errorf(cell.Invalid, op, "", "cannot allow a policy: its path is not absolute")
	}
	// A source is known by its real path; so is what lies in it.
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(dir, filepath.Base(path))
	}
	if filepath.Base(path) != ProjectPolicy {
		return api.PolicyAllowed{}, cell.Errorf(cell.Invalid, op, "name it "+ProjectPolicy+" at the top of the project, or use it with --policy", "cannot allow %s: no run would use a file of this name by itself", path)
	}
	m.allowing.Lock()
	defer m.allowing.Unlock()
	all, err := m.allowedPolicies()
	if err != nil {
		return api.PolicyAllowed{}, err
	}
	out := api.PolicyAllowed{Path: path, At: time.Now().UTC()}
	if req.Forget {
		old, ok := all[path]
		if !ok {
			return out, cell.Errorf(cell.NotFound, op, "`pando policy allow --list` shows what is allowed", "cannot forget %s: it was not allowed", path)
		}
		delete(all, path)
		out.Digest, out.State = old.Digest.String(), "forgotten"
		return out, m.writeAllowed(all)
	}
	text, err := readProject(path)
	if err != nil {
		kind := cell.Invalid
		if errors.Is(err, fs.ErrNotExist) {
			kind = cell.NotFound
		}
		return out, cell.Errorf(kind, op, "write one with pando policy init > "+ProjectPolicy, "cannot allow %s: %w", path, err)
	}
	if _, err := policy.ParseFile(path, text); err != nil {
		return out, err
	}
	sum := cell.Sum(text)
	if req.Digest != "" && req.Digest != sum.String() {
		return out, cell.Errorf(cell.Conflict, op, "read the file again, then repeat pando policy allow", "cannot allow %s: it changed while you looked at it", path)
	}
	all[path] = allowedPolicy{sum, out.At}
	out.Digest, out.State = sum.String(), "in force"
	return out, m.writeAllowed(all)
}

func (m *Manager) writeAllowed(all map[string]allowedPolicy) error {
	b, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	at := m.cfg.Home.Allowed()
	return durable.WriteFile(durable.Disk(filepath.Dir(at)), filepath.Base(at), append(b, '\n'), 0o600)
}

// Allowed lists the files of projects that the user allowed.
func (m *Manager) Allowed() ([]api.PolicyAllowed, error) {
	all, err := m.allowedPolicies()
	if err != nil {
		return nil, err
	}
	out := []api.PolicyAllowed{}
	for path, a := range all {
		v := api.PolicyAllowed{Path: path, Digest: a.Digest.String(), At: a.At, State: "in force"}
		text, err := readProject(path)
		switch {
		case err != nil:
			v.State = "gone"
		case cell.Sum(text) != a.Digest:
			v.State = "changed"
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b api.PolicyAllowed) int { return strings.Compare(a.Path, b.Path) })
	return out, nil
}
