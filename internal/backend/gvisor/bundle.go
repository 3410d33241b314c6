package gvisor

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/isolation/guestkernel"
)

// Paths on a cell's stage.
const (
	bundleDir = "/bundle"
	stateDir  = "/state"
)

// bundle is the part of an OCI runtime configuration (runtime-spec 1.2) that a sandbox needs.
type bundle struct {
	Version  string        `json:"ociVersion"`
	Process  bundleProcess `json:"process"`
	Root     bundleRoot    `json:"root"`
	Hostname string        `json:"hostname"`
	Mounts   []bundleMount `json:"mounts"`
	Linux    bundleLinux   `json:"linux"`
}

type bundleProcess struct {
	User         map[string]int      `json:"user"`
	Args         []string            `json:"args"`
	Env          []string            `json:"env"`
	Cwd          string              `json:"cwd"`
	Capabilities map[string][]string `json:"capabilities"`
}

type bundleRoot struct {
	Path string `json:"path"`
}

type bundleMount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source,omitempty"`
	Options     []string `json:"options,omitempty"`
}

type bundleLinux struct {
	Namespaces []bundleNamespace `json:"namespaces"`
	UIDs       []bundleIDs       `json:"uidMappings,omitempty"`
	GIDs       []bundleIDs       `json:"gidMappings,omitempty"`
}

type bundleIDs struct {
	Inside  int `json:"containerID"`
	Outside int `json:"hostID"`
	Size    int `json:"size"`
}

type bundleNamespace struct {
	Type string `json:"type"`
	Path string `json:"path,omitempty"`
}

// guestCaps are the guest's capabilities in the sandbox: it changes users, kills processes,
// sets the hostname. The sandbox's own process has the same capabilities in the family's user
// namespace, which owns nothing except the cell.
var guestCaps = []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_NET_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_ADMIN", "CAP_SYS_RESOURCE", "CAP_SETFCAP"}

// bundleOf returns the OCI configuration of a cell's sandbox. Its root is the root of the
// namespace cell, without the mounts that belong to the kernel.
func bundleOf(spec *cell.Spec) ([]byte, error) {
	b := bundle{
		Version: "1.2.1",
		Process: bundleProcess{
			User: map[string]int{"uid": os.Getuid(), "gid": os.Getgid()}, // the user of the keeper's user namespace
			Args: []string{guestkernel.GuestPath}, Env: []string{}, Cwd: "/",
			Capabilities: map[string][]string{"bounding": guestCaps, "effective": guestCaps, "permitted": guestCaps, "inheritable": guestCaps, "ambient": guestCaps},
		},
		Root:     bundleRoot{isolation.StageRoot},
		Hostname: spec.Hostname,
		Mounts: []bundleMount{
			{Destination: "/proc", Type: "proc"},
			{Destination: "/sys", Type: "sysfs", Options: []string{"ro"}},
			{Destination: "/dev", Type: "tmpfs"},
			{Destination: "/dev/shm", Type: "tmpfs", Options: []string{"mode=1777"}},
			{Destination: "/tmp", Type: "bind", Source: isolation.StageRoot + "/tmp", Options: tmpOptions(spec)},
		},
		Linux: bundleLinux{Namespaces: []bundleNamespace{{"pid", ""}, {"mount", ""}, {"ipc", ""}, {"uts", ""}, {"network", "/proc/self/ns/net"}}},
	}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 { // there is only one ID
		b.Linux.Namespaces = append(b.Linux.Namespaces, bundleNamespace{"user", ""})
		b.Linux.UIDs, b.Linux.GIDs = []bundleIDs{{uid, uid, 1}}, []bundleIDs{{gid, gid, 1}}
	}
	out, err := json.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("cannot describe the sandbox: %w", err)
	}
	return out, nil
}

// tmpOptions returns the mount options of /tmp. gVisor adds one of them if /tmp is an overlay.
// A copy of the cell must have the same options, and may have a layer at /tmp where the cell
// has a directory.
func tmpOptions(spec *cell.Spec) []string {
	options := []string{"rbind", "rw"}
	for _, m := range spec.Mounts {
		if m.Target == "/tmp" && m.Kind == cell.Overlay {
			return options
		}
	}
	return append(options, "overlayfs_stale_read")
}

// runscArgs returns the global arguments of pando-runsc.
func runscArgs(talks bool) []string {
	network, sockets := "none", "none"
	if talks { // for the keeper's SSH agent; the mounts contain no other listening socket
		network, sockets = "sandbox", "open"
	}
	return []string{"pando-runsc", "--root=" + stateDir, "--platform=systrap", "--network=" + network, "--host-uds=" + sockets, "--ignore-cgroups", "--overlay2=none", "--directfs=false", "--file-access=shared", "--file-access-mounts=shared", "--in-sandbox-cgroup=v2"}
}
