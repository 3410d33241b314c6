package govern

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/credential/sshagent"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/state"
)

// agentName is the socket of a cell's SSH agent, in a folder of its own beside what else
// it needs to talk. Its other end is the keeper's; the caller's own socket is in no cell.
const agentName = "agent/socket"

// AgentOf finds the caller's SSH agent in the caller's environment.
func AgentOf(env []string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "SSH_AUTH_SOCK="); ok {
			return v
		}
	}
	return ""
}

// knownHosts returns the hosts that a key of SSH is for, with what proves them.
func (m *Manager) knownHosts(c credential.Credential) (list []cell.KnownHost, err error) {
	files := []string{filepath.Join(m.cfg.User.Home, ".ssh/known_hosts"), filepath.Join(m.cfg.User.Home, ".ssh/known_hosts2"), "/etc/ssh/ssh_known_hosts"}
	for _, f := range c.Hosts() {
		p, err := credential.ParseHost(f)
		if err != nil {
			return nil, err
		}
		h, err := sshagent.Known(p.Host, p.Port, files...)
		if err != nil {
			return nil, err
		}
		list = append(list, h)
	}
	return list, nil
}

// lentKeys are the keys of the caller's SSH agent that a cell has now. A host
// gets no signature when its key is not known any more.
func (m *Manager) lentKeys(c *state.Cell) []cell.LentKey { return m.keysOf(c, m.lendingsOf(c)) }

func (m *Manager) keysOf(c *state.Cell, lendings []state.Lending) (list []cell.LentKey) {
	for _, l := range lendings {
		known, _, err := m.cfg.Credentials.Get(l.Handle)
		if err != nil || known.Kind != credential.SSH || !l.Revoked.IsZero() {
			continue
		}
		hosts, err := m.knownHosts(known)
		if err != nil {
			m.cfg.Log.Warn("cannot lend a key of SSH", "cell", c.ID, "credential", l.Handle, "error", err)
			continue
		}
		list = append(list, cell.LentKey{Handle: l.Handle, Key: known.Key, Hosts: hosts, Git: known.SignsGit()})
	}
	return list
}

// Equip gives a living cell with a network the list of its last refusals, and the
// caller's SSH agent.
func (m *Manager) Equip(ctx context.Context, c *state.Cell, inst backend.Instance, socket string) error {
	if err := m.showDenials(ctx, c, inst); err != nil { // it costs explanations, and nothing else
		m.cfg.Log.Warn("cannot show the cell what it is refused", "cell", c.ID, "error", err)
	}
	return m.lendAgent(ctx, c, inst, socket)
}

// lendAgent connects a living cell to the caller's SSH agent, if keys of it are
// lent to it: the cell gets a socket, and its keeper has the other end.
func (m *Manager) lendAgent(ctx context.Context, c *state.Cell, inst backend.Instance, socket string) (err error) {
	keys := m.lentKeys(c)
	if len(keys) == 0 {
		return nil
	}
	const opName = "govern.lendAgent"
	fail := func(hint, format string, args ...any) error {
		return cell.Errorf(cell.Unavailable, opName, hint, "cannot lend %s: %w", keys[0].Handle, fmt.Errorf(format, args...))
	}
	if !c.Talks() {
		hint := "let it talk to something: --allow HOST" // the gateway lends keys
		if len(keys[0].Hosts) > 0 {
			hint = fmt.Sprintf("let the cell go there: --allow %s:%d", keys[0].Hosts[0].Host, keys[0].Hosts[0].Port)
		}
		return cell.Errorf(cell.Invalid, opName, hint, "cannot lend %s: no rule lets the cell talk to anything", keys[0].Handle)
	}
	const start = "start an agent and add the key: eval $(ssh-agent); ssh-add"
	if socket == "" {
		return fail(start, "you have no SSH agent: SSH_AUTH_SOCK is not set")
	}
	upstream, err := dialAgent(ctx, socket, keys)
	if err != nil {
		return fail(start, "%w", err)
	}
	defer upstream.Close()
	listener, err := listenAgent(m.TalkDir(c.ID))
	if err != nil {
		return fail("", "%w", err)
	}
	defer listener.Close()
	if err := inst.LendAgent(ctx, path.Join(image.TalkDir, agentName), listener, upstream); err != nil {
		return err
	}
	c.SSHAgent = socket
	return m.writeKnownHosts(c, keys)
}

// dialAgent connects to the caller's agent, and makes sure that it has the keys.
func dialAgent(ctx context.Context, socket string, keys []cell.LentKey) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var d net.Dialer
	dial := func() (*net.UnixConn, error) {
		c, err := d.DialContext(ctx, "unix", socket)
		if err != nil {
			return nil, fmt.Errorf("your SSH agent does not answer: %w", err)
		}
		return c.(*net.UnixConn), nil
	}
	ask, err := dial() // a connection of its own, so that nothing is under way on the other
	if err != nil {
		return nil, err
	}
	defer ask.Close()
	if t, ok := ctx.Deadline(); ok {
		ask.SetDeadline(t)
	}
	have, err := agent.NewClient(ask).List()
	if err != nil {
		return nil, fmt.Errorf("your SSH agent does not list its keys: %w", err)
	}
	for _, k := range keys {
		if !slices.ContainsFunc(have, func(x *agent.Key) bool { return ssh.FingerprintSHA256(x) == k.Key }) {
			return nil, fmt.Errorf("your SSH agent does not have the key %s", k.Key)
		}
	}
	c, err := dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.File()
}

// listenAgent makes the socket that a cell sees.
func listenAgent(dir string) (*os.File, error) {
	if err := os.Mkdir(filepath.Join(dir, filepath.Dir(agentName)), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	in, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	name := filepath.Join(dir, agentName)
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	// Through the descriptor: the path may be longer than an address can be.
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", in.Fd(), agentName))
	if err != nil {
		return nil, err
	}
	ul := l.(*net.UnixListener)
	ul.SetUnlinkOnClose(false)
	defer ul.Close()
	// For all users of the cell: the folder above is the caller's alone.
	if err := os.Chmod(name, 0o666); err != nil {
		return nil, err
	}
	return ul.File()
}

// writeKnownHosts puts the hosts that a cell may log in to into its own
// known_hosts, so that its ssh does not ask. The cell may change the file: what a
// key is lent for, its keeper knows by itself.
func (m *Manager) writeKnownHosts(c *state.Cell, keys []cell.LentKey) error {
	dir := m.cfg.OwnDir(c, cell.RoleHome)
	if dir == "" || c.Home != nil && len(c.Home.Base.Layers) > 0 { // a fork has those of the cell that it was forked from
		return nil
	}
	home, err := os.OpenRoot(dir) // the cell can't lead out of it
	if err != nil {
		return err
	}
	defer home.Close()
	if _, err := home.Lstat(".ssh/known_hosts"); err == nil {
		return nil
	}
	if err := home.Mkdir(".ssh", 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil // the cell has made something else of it
	}
	var text strings.Builder
	for _, k := range keys {
		for _, h := range k.Hosts {
			for _, key := range h.Keys {
				fmt.Fprintf(&text, "%s %s\n", sshagent.Address(h.Host, h.Port), key)
			}
		}
	}
	if text.Len() == 0 {
		return nil
	}
	f, err := home.OpenFile(".ssh/known_hosts", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil
	}
	defer f.Close()
	_, err = f.WriteString(text.String())
	return err
}
