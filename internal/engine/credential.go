package engine

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/govern"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/state"
)

// lend gives a cell the credentials with these handles: what its gateway is
// told, and the variables that hold placeholders. The cell has the same
// placeholders whenever it asks, also after a restart; a fork, which is another
// cell, gets its own. It fails for a handle that is not stored, and for one that
// was taken back from this cell. Handles that the cell has and that are not
// asked for are not among the answer.
func (e *Engine) lend(c *state.Cell, handles []string) ([]cell.Lent, []string, error) {
	const opName = "engine.lend"
	if len(handles) == 0 {
		return nil, nil, nil
	}
	e.lending.Lock()
	defer e.lending.Unlock()
	var lent []cell.Lent
	var env []string
	var fresh []any
	for _, h := range handles {
		known, secret, err := e.cfg.Credentials.Get(h)
		if err == nil && known.Kind == credential.SSH {
			_, err = e.knownHosts(known)
		}
		if err != nil {
			return nil, nil, govern.CannotLend(h, err)
		}
		l, ok := e.reg.Lending(c.ID, h)
		switch {
		case ok && !l.Revoked.IsZero():
			return nil, nil, cell.Errorf(cell.Denied, opName, "give it back with pando credential revoke "+h+" --cell "+c.Title()+" --undo",
				"cannot lend %s: it was taken back from cell %s at %s", h, c.Title(), l.Revoked.Format(time.DateTime))
		case !ok:
			l = state.Lending{Cell: c.ID, Handle: h, Since: time.Now().UTC()}
			if known.Kind == credential.Token {
				l.Placeholder = credential.Placeholder(known.Shape)
			}
			fresh = append(fresh, &l)
		}
		lent = append(lent, known.Lend(l.Placeholder, secret)...)
		env = append(env, variables(known, l)...)
	}
	if len(fresh) > 0 { // before the cell can use any
		if err := e.reg.Commit(fresh...); err != nil {
			return nil, nil, err
		}
	}
	return lent, env, nil
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
func (e *Engine) lent(c *state.Cell) []cell.Lent { return e.valuesOf(e.lendingsOf(c)) }

func (e *Engine) valuesOf(lendings []state.Lending) (list []cell.Lent) {
	for _, l := range lendings {
		if known, secret, err := e.cfg.Credentials.Get(l.Handle); err == nil && l.Revoked.IsZero() {
			list = append(list, known.Lend(l.Placeholder, secret)...)
		}
	}
	return list
}

// lendingsOf returns what was lent to a cell and its policy, as it is now, still
// names.
func (e *Engine) lendingsOf(c *state.Cell) []state.Lending {
	return slices.DeleteFunc(e.reg.Lendings(c.ID), func(l state.Lending) bool { return !slices.Contains(c.Setup.Handles, l.Handle) })
}

// lentEnv is the variables that hold placeholders in a cell. They stay when a
// credential is taken back: what holds them goes on, and gets a denial.
func (e *Engine) lentEnv(c *state.Cell) []string { return e.envOf(e.lendingsOf(c)) }

func (e *Engine) envOf(lendings []state.Lending) (env []string) {
	ssh := false
	for _, l := range lendings {
		if known, _, err := e.cfg.Credentials.Get(l.Handle); err == nil {
			env = append(env, variables(known, l)...)
			ssh = ssh || known.Kind == credential.SSH
		}
	}
	if ssh {
		env = append(env, "SSH_AUTH_SOCK="+path.Join(image.TalkDir, agentName))
	}
	return env
}

// Credentials lists what can be lent, and to whom it is.
func (e *Engine) Credentials() []api.Credential {
	out := []api.Credential{}
	for _, c := range e.cfg.Credentials.List() {
		out = append(out, e.credentialView(c))
	}
	for name, err := range e.cfg.Credentials.Broken() {
		v := e.credentialView(credential.Credential{Name: name})
		v.Problem = err.Error()
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b api.Credential) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (e *Engine) credentialView(c credential.Credential) api.Credential {
	v := api.Credential{Name: c.Name, Kind: c.Kind, For: orEmpty(c.For), As: c.As, Env: c.Env, Key: c.Key, Comment: c.Comment, Created: c.Created, Lent: []api.CredentialLent{}}
	for _, u := range c.Also {
		v.Also = append(v.Also, api.CredentialPut{For: u.For, As: u.As})
	}
	for _, l := range e.holders(c.Name) {
		in := api.CredentialLent{Cell: string(l.Cell), Since: l.Since, Revoked: l.Revoked}
		if holder, err := e.reg.Cell(l.Cell); err == nil {
			in.CellName = holder.Name
		}
		v.Lent = append(v.Lent, in)
	}
	return v
}

// AddCredential stores a credential. When it replaces one, cells that have it
// go on with the new value.
func (e *Engine) AddCredential(ctx context.Context, req api.CredentialRequest) (api.Credential, error) {
	secret := credential.NewSecret(req.Secret)
	if req.Kind == credential.SSH {
		if _, err := e.knownHosts(credential.Credential{For: req.For}); err != nil {
			return api.Credential{}, err
		}
	}
	c, err := e.cfg.Credentials.Add(credential.Credential{
		Name: req.Name, Kind: req.Kind, For: req.For, As: req.As, Env: req.Env, Key: req.Key, Comment: redactor.String(req.Comment),
	}, secret, req.Replace)
	if err != nil {
		return api.Credential{}, err
	}
	if err := e.know(secret); err != nil {
		return api.Credential{}, err
	}
	err = e.regovernAll(ctx, c.Name)
	return e.credentialView(c), err
}

// know makes the redactor know a value.
func (e *Engine) know(secret credential.Secret) error {
	if secret.Reveal() == "" {
		return nil
	}
	return redactor.Add(secret.Reveal())
}

// knowAll makes the redactor know all that is stored.
func (e *Engine) knowAll() error {
	for _, c := range e.cfg.Credentials.List() {
		if _, secret, err := e.cfg.Credentials.Get(c.Name); err == nil {
			if err := e.know(secret); err != nil {
				return err
			}
		}
	}
	return nil
}

// RemoveCredential forgets a credential. Cells that have it lose it at once.
func (e *Engine) RemoveCredential(ctx context.Context, name string) (api.RevokeResult, error) {
	res := api.RevokeResult{Credential: name, Cells: []string{}}
	if err := e.cfg.Credentials.Remove(name); err != nil {
		return res, err
	}
	for _, l := range e.holders(name) {
		if l.Revoked.IsZero() {
			res.Cells = append(res.Cells, string(l.Cell))
		}
	}
	return res, e.regovernAll(ctx, name)
}

// CheckCredential looks whether a credential can be used.
func (e *Engine) CheckCredential(name string) (api.CredentialCheck, error) {
	c, problems, err := e.cfg.Credentials.Check(name)
	if err != nil {
		return api.CredentialCheck{}, err
	}
	if c.Name == "" {
		c.Name = name
	}
	return api.CredentialCheck{Credential: e.credentialView(c), OK: len(problems) == 0, Problems: orEmpty(problems)}, nil
}

// RevokeCredential takes a credential back from cells, also while they run: when
// it returns, no gateway puts it in any more.
func (v *View) RevokeCredential(ctx context.Context, name string, req api.RevokeRequest) (api.RevokeResult, error) {
	const opName = "engine.RevokeCredential"
	e := v.e
	res := api.RevokeResult{Credential: name, Cells: []string{}}
	var which func(cell.ID) bool
	switch {
	case req.All && req.Cell == "" && req.Subtree == "":
		which = v.sees
	case !req.All && (req.Cell == "") != (req.Subtree == ""):
		top, err := v.SelectCell(req.Cell+req.Subtree, "")
		if err != nil {
			return res, err
		}
		which = func(id cell.ID) bool {
			return (id == top || req.Subtree != "" && e.descends(id, top)) && v.sees(id)
		}
	default:
		return res, cell.Errorf(cell.Invalid, opName, "choose one of --cell CELL, --subtree CELL and --all", "cannot revoke %s: it was not said from which cells", clip(name))
	}
	changed, err := e.changeLendings(name, req.Undo, which)
	if err != nil {
		return res, err
	}
	if len(changed) == 0 && !req.All {
		if _, _, err := e.cfg.Credentials.Get(name); err != nil {
			return res, err
		}
	}
	var errs []error
	for _, id := range changed {
		res.Cells = append(res.Cells, string(id))
		errs = append(errs, e.regovern(ctx, id))
	}
	return res, errors.Join(errs...)
}

// changeLendings marks the lendings of a credential as taken back, or as given
// back, and returns the cells whose lending changed.
func (e *Engine) changeLendings(name string, undo bool, which func(cell.ID) bool) (changed []cell.ID, err error) {
	e.lending.Lock()
	defer e.lending.Unlock()
	var records []any
	for _, l := range e.holders(name) {
		if !which(l.Cell) || l.Revoked.IsZero() == undo {
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
		return nil, nil
	}
	return changed, e.reg.Commit(records...)
}

// holders returns the lendings of a credential to cells that are there.
func (e *Engine) holders(name string) []state.Lending {
	return slices.DeleteFunc(e.reg.LentOf(name), func(l state.Lending) bool {
		c, err := e.reg.Cell(l.Cell)
		return err == nil && c.State == cell.Removed // a new cell is recorded a moment after what it is lent
	})
}

// descends reports whether a cell was forked from another, directly or not.
func (e *Engine) descends(id, from cell.ID) bool {
	for range 10_000 {
		c, err := e.reg.Cell(id)
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
func (e *Engine) regovernAll(ctx context.Context, name string) error {
	var errs []error
	for _, l := range e.holders(name) {
		errs = append(errs, e.regovern(ctx, l.Cell))
	}
	return errors.Join(errs...)
}
