package daemon

import (
	"context"
	"net"
	"net/http"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/engine"
	"github.com/pando-dev/pando/internal/run"
	"github.com/pando-dev/pando/internal/sshd"
)

// hostKey is the key of the SSH servers in front of cells.
func (d *Daemon) hostKey() (ssh.Signer, error) {
	d.hostKeys.Lock()
	defer d.hostKeys.Unlock()
	return sshd.HostKey(durable.Disk(d.cfg.Home.Keys()))
}

// sshHost tells by which key clients know the SSH server.
func (d *Daemon) sshHost(http.ResponseWriter, *http.Request) (any, error) {
	key, err := d.hostKey()
	if err != nil {
		return nil, err
	}
	return api.SSHHost{Key: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key.PublicKey())))}, nil
}

// serveSSH upgrades the request to a WebSocket. Its binary messages are the bytes of a connection to an SSH server in front of
// the cell.
func (d *Daemon) serveSSH(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	if !upgrades(r) {
		return nil, noWebSocket(r)
	}
	if err := d.cfg.Engine.Enter(id); err != nil {
		return nil, err
	}
	key, err := d.hostKey()
	if err != nil {
		return nil, err
	}
	ours, theirs := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := sshd.Serve(r.Context(), theirs, key, sshCell{d.cfg.Engine, id}, d.cfg.Log); err != nil {
			d.cfg.Log.Info("a connection of SSH ended", "cell", id, "error", err)
		}
	}()
	out, err := d.carryTo(w, r, ours)
	<-served
	return out, err
}

// sshCell is a cell for an SSH server, as the caller may use it.
type sshCell struct {
	v  *engine.View
	id cell.ID
}

func (c sshCell) StartExec(ctx context.Context, req api.ExecRequest) (api.Exec, error) {
	return c.v.StartExec(ctx, c.id, req)
}

func (c sshCell) AttachExec(id string, input bool) (*run.Attachment, error) {
	return c.v.AttachExec(id, input)
}

func (c sshCell) SignalExec(ctx context.Context, id, signal string) error {
	_, err := c.v.SignalExec(ctx, id, signal)
	return err
}

func (c sshCell) Dial(ctx context.Context, port int) (net.Conn, error) {
	return c.v.Dial(ctx, c.id, port)
}
func (c sshCell) SFTP(ctx context.Context) (net.Conn, error) { return c.v.SFTP(ctx, c.id) }
