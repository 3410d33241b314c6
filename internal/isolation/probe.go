package isolation

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/volume"
)

// Probe implements backend.Backend. It clones a keeper to test user namespaces, and asks the
// kernel about the rest.
func (h *Host) Probe(ctx context.Context) (backend.Caps, error) {
	var caps backend.Caps
	k, err := h.keepers.Take()
	if err != nil {
		return caps, explainKeeper(err)
	}
	if err := h.probeKeeper(k.PID); err != nil {
		k.Discard()
		return caps, err
	}
	h.keepers.Put(k)
	if linux.LandlockABI() == 0 {
		caps.Landlock = "this kernel has no Landlock: mounts alone say what can be written"
	}
	if h.cgroups == nil {
		caps.MemoryLimit, caps.CPULimit = h.noCg, h.noCg
		caps.Freeze = ""
	} else {
		c := h.cgroups.Caps()
		caps.MemoryLimit, caps.CPULimit, caps.ProcessLimit = c.Memory, c.CPU, ""
	}
	if !h.root {
		caps.ManyIDs = "without root a cell has one user: chown and package managers don't work in it"
	}
	if _, err := h.Link(ctx); err != nil {
		caps.Network = err.Error()
	}
	if why := volume.Lacks(); why != "" {
		caps.DiskLimit = "what a cell writes is counted, and a cell above its limit is ended: " + why
	}
	return caps, nil
}

// Link implements backend.Connector. It tries the same kinds of link as the keeper of a cell.
func (h *Host) Link(ctx context.Context) (string, error) {
	only := ""
	if h.cfg.Above != nil {
		only = h.cfg.Above.Link
	}
	if only == "socket" { // needs nothing of the host
		return only, nil
	}
	node := h.tunNode()
	if node != nil {
		defer node.Close()
	}
	noTun, noVeth := linux.ProbeLinks(node)
	switch {
	case noTun == nil && only != "veth":
		return "tun", nil
	case noVeth == nil:
		return "veth", nil
	case only == "veth":
		return "", noVethPair(noVeth)
	}
	return "", noLink(noTun, noVeth)
}

// probeKeeper verifies that a cloned process has capabilities. Some security modules allow
// clone(2) and then withhold them.
func (h *Host) probeKeeper(pid int) error {
	st, err := os.ReadFile(procPath(pid, "status"))
	if err != nil {
		return err
	}
	if linux.StatusField(st, "CapEff") == "0000000000000000" {
		return cell.Errorf(cell.Unsupported, "isolation.Probe", "run `pando doctor`: it prints the remedy for this host",
			"user namespaces have no capabilities here: %w", unix.EPERM)
	}
	return nil
}
