package govern

import (
	"context"
	"errors"
	"net"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/credential/sshagent"
)

// GitSigner returns a function that signs commits with the key of a credential for signatures of git, by the caller's SSH
// agent, which listens on a socket. The caller closes it.
func (m *Manager) GitSigner(ctx context.Context, name, socket string) (sign func(ctx context.Context, commit string) (string, error), key string, done func(), err error) {
	const opName = "govern.GitSigner"
	known, _, err := m.cfg.Credentials.Get(name)
	if err != nil {
		return nil, "", nil, err
	}
	if !known.SignsGit() {
		return nil, "", nil, cell.Errorf(cell.Invalid, opName, "store a key that is: pando credential add NAME --ssh KEY.pub --for "+credential.GitSignatures, "cannot sign with %s: it is no key for signatures of git", clip(name))
	}
	fail := func(err error) error {
		return cell.Errorf(cell.Unavailable, opName, "start an agent and add the key: eval $(ssh-agent); ssh-add", "cannot sign with %s: %w", clip(name), err)
	}
	if socket == "" {
		return nil, "", nil, fail(errors.New("you have no SSH agent: SSH_AUTH_SOCK is not set"))
	}
	public, _, _, _, err := ssh.ParseAuthorizedKey([]byte(known.Public))
	if err != nil {
		return nil, "", nil, fail(err)
	}
	f, err := dialAgent(ctx, socket, []cell.LentKey{{Handle: name, Key: known.Key}})
	if err != nil {
		return nil, "", nil, fail(err)
	}
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, "", nil, fail(err)
	}
	a := agent.NewClient(conn)
	return func(ctx context.Context, commit string) (string, error) {
		defer context.AfterFunc(ctx, func() { conn.Close() })() // an agent may wait for a person
		text, err := sshagent.SignForGit(a, public, []byte(commit))
		if err != nil {
			err = fail(err)
		}
		return text, err
	}, known.Key, func() { conn.Close() }, nil
}
