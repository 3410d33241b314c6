package server

import (
	"net"
	"os"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/credential/sshagent"
	"github.com/pando-dev/pando/internal/policy/decide"
)

// lentAgent is the view of the caller's SSH agent in a cell: a socket with a filter behind it.
type lentAgent struct {
	filter   *sshagent.Filter
	listener net.Listener
	upstream net.Conn
	done     chan struct{}
}

// Lend implements Network.
func (n *cellNetwork) Lend(listener net.Listener, upstream *os.File) error {
	const opName = "keeper.Lend"
	defer upstream.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	rules, err := decide.Govern(n.rules)
	if err != nil {
		listener.Close()
		return err
	}
	a := &lentAgent{listener: listener, done: make(chan struct{})}
	if a.upstream, err = net.FileConn(upstream); err != nil {
		a.listener.Close()
		return cell.Errorf(cell.Internal, opName, "", "cannot reach the SSH agent: %w", err)
	}
	a.filter, err = sshagent.New(sshagent.Config{Upstream: a.upstream, Keys: n.rules.Keys, Policy: rules, Emit: n.emit, Log: n.log})
	if err != nil {
		a.listener.Close()
		a.upstream.Close()
		return err
	}
	go func() {
		a.filter.Serve(a.listener) // until it is closed
		close(a.done)
	}()
	if n.agent != nil {
		n.agent.close()
	}
	n.agent = a
	return nil
}

func (a *lentAgent) close() {
	a.listener.Close()
	a.upstream.Close() // cancels pending signatures
	a.filter.Close()
	<-a.done
}

// Govern implements Network. Gateway and agent apply the same policy.
func (n *cellNetwork) Govern(g cell.Governance) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.agent != nil {
		rules, err := decide.Govern(g)
		if err != nil {
			return err
		}
		if err := n.agent.filter.Govern(g.Keys, rules); err != nil {
			return err
		}
	}
	if err := n.Gateway.Govern(g); err != nil {
		return err
	}
	n.rules = g
	return nil
}

// Settle implements Network.
func (n *cellNetwork) Settle(d time.Duration) {
	n.mu.Lock()
	if n.agent != nil {
		n.agent.filter.Flush()
	}
	n.mu.Unlock()
	n.Gateway.Settle(d)
}

// Close implements Network.
func (n *cellNetwork) Close() error {
	n.mu.Lock()
	if n.agent != nil {
		n.agent.close()
		n.agent = nil
	}
	n.mu.Unlock()
	n.links.close()
	return n.Gateway.Close()
}
