package govern

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/state"
)

// Lend gives a cell the credentials with these handles: what its gateway is
// told, and the variables that hold placeholders. The cell has the same
// placeholders whenever it asks, also after a restart; a fork, which is another
// cell, gets its own. It fails for a handle that is not stored, and for one that
// was taken back from this cell. Handles that the cell has and that are not
// asked for are not among the answer.
func (m *Manager) Lend(c *state.Cell, handles []string) ([]cell.Lent, []string, error) {
	const opName = "govern.lend"
	if len(handles) == 0 {
		return nil, nil, nil
	}
	m.lending.Lock()
	defer m.lending.Unlock()
	var lent []cell.Lent
	var env []string
	var fresh []any
	for _, h := range handles {
		known, secret, err := m.cfg.Credentials.Get(h)
		if err == nil && known.Kind == credential.SSH {
			_, err = m.knownHosts(known)
		}
		if err == nil && known.Expired(time.Now()) {
			err = cell.Errorf(cell.Unavailable, opName, credential.Renew(known.Login.Program), "the login in %s expired at %s", known.Login.Path, known.Expires.Format(time.RFC3339))
		}
		if err != nil {
			return nil, nil, cannotLend(h, err)
		}
		l, ok := m.cfg.Records.Lending(c.ID, h)
		switch {
		case ok && !l.Revoked.IsZero():
			return nil, nil, cell.Errorf(cell.Denied, opName, "give it back with pando credential revoke "+h+" --cell "+c.Title()+" --undo",
				"cannot lend %s: it was taken back from cell %s at %s", h, c.Title(), l.Revoked.Format(time.DateTime))
		case !ok:
			l = state.Lending{Cell: c.ID, Handle: h, Since: time.Now().UTC()}
			if known.Kind == credential.Token {
				l.Placeholder = known.Placeholder()
			}
			fresh = append(fresh, &l)
		}
		lent = append(lent, known.Lend(l.Placeholder, secret)...)
		env = append(env, variables(known, l)...)
	}
	if len(fresh) > 0 { // before the cell can use any
		if err := m.cfg.Records.Commit(fresh...); err != nil {
			return nil, nil, err
		}
	}
	return lent, env, nil
}

// cannotLend says why a credential can't be lent.
func cannotLend(handle string, err error) error {
	return &cell.Error{Op: "govern.lend", Kind: cell.KindOf(err), Hint: cell.HintOf(err), Err: errors.New("cannot lend " + clip(handle) + ": " + err.Error())}
}

// PlaceholderOf is what a cell has for a credential that it was lent.
func (m *Manager) PlaceholderOf(id cell.ID, handle string) string {
	l, _ := m.cfg.Records.Lending(id, handle)
	return l.Placeholder
}

func variables(c credential.Credential, l state.Lending) (env []string) {
	if l.Placeholder == "" {
		return nil
	}
	for _, name := range c.Env {
		env = append(env, name+"="+l.Placeholder)
	}
	return env
}

// lent is what a cell has now: what its policy lends, what was lent to it, and
// what was neither taken back nor removed since. A gateway that is told anew is
// told this.
func (m *Manager) lent(c *state.Cell) []cell.Lent { return m.valuesOf(m.lendingsOf(c)) }

func (m *Manager) valuesOf(lendings []state.Lending) (list []cell.Lent) {
	for _, l := range lendings {
		if known, secret, err := m.cfg.Credentials.Get(l.Handle); err == nil && l.Revoked.IsZero() {
			list = append(list, known.Lend(l.Placeholder, secret)...)
		}
	}
	return list
}

// lendingsOf returns what was lent to a cell and its policy, as it is now, still
// names.
func (m *Manager) lendingsOf(c *state.Cell) []state.Lending {
	return slices.DeleteFunc(m.cfg.Records.Lendings(c.ID), func(l state.Lending) bool { return !slices.Contains(c.Setup.Handles, l.Handle) })
}

// Env is what every command in a cell finds: the image's variables, and placeholders of what
// the cell was lent. They stay when a credential is taken back: what holds them goes on, and
// gets a denial.
func (m *Manager) Env(c *state.Cell) []string {
	return append(slices.Clone(c.Setup.Env), m.envOf(m.lendingsOf(c), c.Setup.Env)...)
}

// envOf is Env beside what is set already.
func (m *Manager) envOf(lendings []state.Lending, set []string) (env []string) {
	ssh, signs := false, false
	for _, l := range lendings {
		if known, _, _ := m.cfg.Credentials.Get(l.Handle); known.Name != "" { // also when its login file cannot be read now
			env = append(env, variables(known, l)...)
			ssh = ssh || known.Kind == credential.SSH
			if known.SignsGit() && !signs && l.Revoked.IsZero() { // without it git goes on, and signs nothing
				env = append(env, gitSigns(known, set)...)
				signs = true
			}
		}
	}
	if ssh {
		env = append(env, "SSH_AUTH_SOCK="+path.Join(image.TalkDir, agentName))
	}
	return env
}

// gitSigns are the variables by which git signs commits and tags with a key of the agent (git-config(1), GIT_CONFIG_COUNT).
// They follow those that the cell's environment has.
func gitSigns(c credential.Credential, there []string) (env []string) {
	key := c.Public
	if !strings.HasPrefix(key, "ssh-") { // git knows the prefix since 2.35, and such keys without it since 2.34
		key = "key::" + key
	}
	first := 0
	for _, kv := range there {
		if n, ok := strings.CutPrefix(kv, "GIT_CONFIG_COUNT="); ok {
			if n, err := strconv.Atoi(n); err == nil && n > 0 {
				first = n
			}
		}
	}
	set := [][2]string{{"gpg.format", "ssh"}, {"user.signingKey", key}, {"commit.gpgSign", "true"}, {"tag.gpgSign", "true"}}
	for i, kv := range set {
		env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", first+i, kv[0]), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", first+i, kv[1]))
	}
	return append(env, fmt.Sprintf("GIT_CONFIG_COUNT=%d", first+len(set)))
}

// SignsGit reports whether a cell is lent a key that signs its commits.
func (m *Manager) SignsGit(c *state.Cell) bool {
	return slices.ContainsFunc(c.Setup.Handles, func(h string) bool {
		l, ok := m.cfg.Records.Lending(c.ID, h)
		known, _, err := m.cfg.Credentials.Get(h)
		return err == nil && known.SignsGit() && (!ok || l.Revoked.IsZero())
	})
}

// Credentials lists what can be lent, and the cells that have it.
func (m *Manager) Credentials() []api.Credential {
	out := []api.Credential{}
	for _, c := range m.cfg.Credentials.List() {
		var err error
		if c.Login != nil {
			c, _, err = m.cfg.Credentials.Get(c.Name)
		}
		v := m.credentialView(c)
		switch {
		case err != nil:
			v.Problem = err.Error()
		case c.Expired(time.Now()):
			v.Problem = c.Login.Expired()
		}
		out = append(out, v)
	}
	for name, err := range m.cfg.Credentials.Broken() {
		v := m.credentialView(credential.Credential{Name: name})
		v.Problem = err.Error()
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b api.Credential) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (m *Manager) credentialView(c credential.Credential) api.Credential {
	v := api.Credential{Name: c.Name, Kind: c.Kind, For: append([]string{}, c.For...), As: c.As, Env: c.Env, Key: c.Key, Comment: c.Comment, Created: c.Created, Lent: []api.CredentialLent{}}
	if c.Login != nil {
		v.Login, v.Path, v.Expires = c.Login.Program, c.Login.Path, c.Expires
	}
	for _, u := range c.Also {
		v.Also = append(v.Also, api.CredentialPut{For: u.For, As: u.As})
	}
	for _, l := range m.holders(c.Name) {
		in := api.CredentialLent{Cell: string(l.Cell), Since: l.Since, Revoked: l.Revoked}
		if holder, err := m.cfg.Records.Cell(l.Cell); err == nil {
			in.CellName = holder.Name
		}
		v.Lent = append(v.Lent, in)
	}
	return v
}

// AddCredential stores a credential. When it replaces one, cells that have it
// go on with the new value.
func (m *Manager) AddCredential(ctx context.Context, req api.CredentialRequest) (api.Credential, error) {
	secret := credential.NewSecret(req.Secret)
	if req.Kind == credential.SSH {
		if _, err := m.knownHosts(credential.Credential{Kind: req.Kind, For: req.For}); err != nil {
			return api.Credential{}, err
		}
	}
	of := credential.Credential{Name: req.Name, Kind: req.Kind, For: req.For, As: req.As, Env: req.Env, Key: req.Key, Comment: m.cfg.Redactor.String(req.Comment)}
	if req.Login != "" || req.Path != "" {
		if of.Login = (&credential.Login{Program: req.Login, Path: req.Path}); req.Secret != "" || req.Kind == credential.SSH {
			return api.Credential{}, cell.Errorf(cell.Invalid, "govern.AddCredential", "leave one out", "cannot store %s: a login file has its own value", clip(req.Name))
		}
	}
	c, err := m.cfg.Credentials.Add(of, secret, req.Replace)
	if err != nil {
		return api.Credential{}, err
	}
	if _, secret, err = m.cfg.Credentials.Get(c.Name); err != nil && c.Login != nil {
		return api.Credential{}, err
	}
	if err := m.know(secret); err != nil {
		return api.Credential{}, err
	}
	err = m.regovernAll(ctx, c.Name)
	return m.credentialView(c), err
}

// know makes the redactor know a value.
func (m *Manager) know(secret credential.Secret) error {
	if secret.Reveal() == "" {
		return nil
	}
	return m.cfg.Redactor.Add(secret.Reveal())
}

// startWait is how long the start of the daemon waits for all login files.
const startWait = 100 * time.Millisecond

// KnowStored makes the redactor know all that is stored. What a login file says that does not answer
// becomes known by KeepLogins.
func (m *Manager) KnowStored() error {
	ctx, cancel := context.WithTimeout(m.cfg.Life, startWait)
	defer cancel()
	for _, c := range m.cfg.Credentials.List() {
		if _, secret, err := m.cfg.Credentials.GetContext(ctx, c.Name); err == nil {
			if err := m.know(secret); err != nil {
				return err
			}
		}
	}
	return nil
}

// RemoveCredential forgets a credential. Cells that have it lose it at once.
func (m *Manager) RemoveCredential(ctx context.Context, name string) (api.RevokeResult, error) {
	res := api.RevokeResult{Credential: name, Cells: []string{}}
	if err := m.cfg.Credentials.Remove(name); err != nil {
		return res, err
	}
	for _, l := range m.holders(name) {
		if l.Revoked.IsZero() {
			res.Cells = append(res.Cells, string(l.Cell))
		}
	}
	return res, m.regovernAll(ctx, name)
}

// CheckCredential looks whether a credential can be used.
func (m *Manager) CheckCredential(name string) (api.CredentialCheck, error) {
	c, problems, err := m.cfg.Credentials.Check(name)
	if err != nil {
		return api.CredentialCheck{}, err
	}
	if c.Name == "" {
		c.Name = name
	}
	return api.CredentialCheck{Credential: m.credentialView(c), OK: len(problems) == 0, Problems: append([]string{}, problems...)}, nil
}

// Revoke takes a credential back from cells, also while they run: when
// it returns, no gateway puts it in any more. sees reports which cells the caller may see.
func (m *Manager) Revoke(ctx context.Context, name string, req api.RevokeRequest, by Selector, sees func(cell.ID) bool) (api.RevokeResult, error) {
	const opName = "govern.Revoke"
	res := api.RevokeResult{Credential: name, Cells: []string{}}
	var which func(cell.ID) bool
	switch {
	case req.All && req.Cell == "" && req.Subtree == "":
		which = sees
	case !req.All && (req.Cell == "") != (req.Subtree == ""):
		top, err := by.SelectCell(req.Cell+req.Subtree, "")
		if err != nil {
			return res, err
		}
		which = func(id cell.ID) bool {
			return (id == top || req.Subtree != "" && m.descends(id, top)) && sees(id)
		}
	default:
		return res, cell.Errorf(cell.Invalid, opName, "choose one of --cell CELL, --subtree CELL and --all", "cannot revoke %s: it was not said from which cells", clip(name))
	}
	changed, all, err := m.changeLendings(name, req.Undo, which)
	if err != nil {
		return res, err
	}
	if len(changed) == 0 && !req.All {
		if _, _, err := m.cfg.Credentials.Get(name); err != nil {
			return res, err
		}
	}
	for _, id := range changed {
		res.Cells = append(res.Cells, string(id))
	}
	// A cell that the same command did not reach before is told now.
	return res, m.refreshAll(ctx, all)
}

// changeLendings marks the lendings of a credential as taken back, or as given
// back, and returns the cells of those that changed, and of all that are meant.
func (m *Manager) changeLendings(name string, undo bool, which func(cell.ID) bool) (changed, all []cell.ID, err error) {
	m.lending.Lock()
	defer m.lending.Unlock()
	var records []any
	for _, l := range m.holders(name) {
		if !which(l.Cell) {
			continue
		}
		if all = append(all, l.Cell); l.Revoked.IsZero() == undo {
			continue
		}
		l.Revoked = time.Time{}
		if !undo {
			l.Revoked = time.Now().UTC()
		}
		records = append(records, &l)
		changed = append(changed, l.Cell)
	}
	if len(records) == 0 {
		return nil, all, nil
	}
	return changed, all, m.cfg.Records.Commit(records...)
}

// holders returns the lendings of a credential to cells that are there.
func (m *Manager) holders(name string) []state.Lending {
	return slices.DeleteFunc(m.cfg.Records.LentOf(name), func(l state.Lending) bool {
		c, err := m.cfg.Records.Cell(l.Cell)
		return err == nil && c.State == cell.Removed // a new cell is recorded a moment after what it is lent
	})
}

// descends reports whether a cell was forked from another, directly or not.
func (m *Manager) descends(id, from cell.ID) bool {
	for range 10_000 {
		c, err := m.cfg.Records.Cell(id)
		if err != nil || c.Parent == nil {
			return false
		}
		if id = c.Parent.Cell; id == from {
			return true
		}
	}
	return false
}

// regovernAll tells the gateways of all cells that have a credential.
func (m *Manager) regovernAll(ctx context.Context, name string) error {
	var cells []cell.ID
	for _, l := range m.holders(name) {
		cells = append(cells, l.Cell)
	}
	return m.refreshAll(ctx, cells)
}

// refreshAll refreshes cells, tellAtOnce at a time and each for tellWithin at most. The error is of all that
// could not be told.
func (m *Manager) refreshAll(ctx context.Context, cells []cell.ID) error {
	var g errgroup.Group
	g.SetLimit(tellAtOnce)
	errs := make([]error, len(cells))
	for i, id := range cells {
		g.Go(func() error {
			errs[i] = m.refreshWithin(ctx, id)
			return nil
		})
	}
	g.Wait()
	return errors.Join(errs...)
}

// refreshWithin is Refresh for tellWithin at most.
func (m *Manager) refreshWithin(ctx context.Context, id cell.ID) error {
	in, cancel := context.WithTimeoutCause(ctx, tellWithin, cell.Errorf(cell.Unavailable, "govern.refresh", "", "its keeper did not answer in %s", tellWithin))
	defer cancel()
	err := m.Refresh(in, id)
	if err == nil || in.Err() == nil || ctx.Err() != nil {
		return err
	}
	title := string(id)
	if c, err := m.cfg.Records.Cell(id); err == nil {
		title = c.Title()
	}
	return cell.Errorf(cell.Unavailable, "govern.refresh", "give the command again, or end the cell: pando stop "+title,
		"cannot tell cell %s what it is lent: %w", title, context.Cause(in))
}
