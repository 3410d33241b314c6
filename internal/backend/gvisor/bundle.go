package gvisor

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/pando-dev/pando/internal/backend/namespace"
	"github.com/pando-dev/pando/internal/backend/staged"
	"github.com/pando-dev/pando/internal/cell"
)

// Where things are on a cell's stage.
const (
	bundleDir = "/bundle"
	stateDir  = "/state"
)

// bundle is the part of an OCI runtime configuration (runtime-spec 1.2) that a
// sandbox needs.
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

// guestCaps are the capabilities of the guest, in the sandbox: it changes users,
// ends processes, names the cell. The sandbox's own process has the same in the
// cell's user namespace, in which it owns nothing but the cell.
var guestCaps = []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_NET_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_ADMIN", "CAP_SYS_RESOURCE", "CAP_SETFCAP"}

// bundleOf describes a cell's sandbox to gVisor: its root is what the namespace
// cell shows, without the parts that are the kernel's own.
func bundleOf(spec *cell.Spec) ([]byte, error) {
	b := bundle{
		Version: "1.2.1",
		Process: bundleProcess{
			User: map[string]int{"uid": os.Getuid(), "gid": os.Getgid()}, // whom the keeper's user namespace has
			Args: []string{staged.GuestPath}, Env: []string{}, Cwd: "/",
			Capabilities: map[string][]string{"bounding": guestCaps, "effective": guestCaps, "permitted": guestCaps, "inheritable": guestCaps, "ambient": guestCaps},
		},
		Root:     bundleRoot{namespace.StageRoot},
		Hostname: spec.Hostname,
		Mounts: []bundleMount{
			{Destination: "/proc", Type: "proc"},
			{Destination: "/sys", Type: "sysfs", Options: []string{"ro"}},
			{Destination: "/dev", Type: "tmpfs"},
			{Destination: "/dev/shm", Type: "tmpfs", Options: []string{"mode=1777"}},
			{Destination: "/tmp", Type: "bind", Source: namespace.StageRoot + "/tmp", Options: tmpOptions(spec)},
		},
		Linux: bundleLinux{Namespaces: []bundleNamespace{{"pid", ""}, {"mount", ""}, {"ipc", ""}, {"uts", ""}, {"network", "/proc/self/ns/net"}}},
	}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 { // the one id that there is
		b.Linux.Namespaces = append(b.Linux.Namespaces, bundleNamespace{"user", ""})
		b.Linux.UIDs, b.Linux.GIDs = []bundleIDs{{uid, uid, 1}}, []bundleIDs{{gid, gid, 1}}
	}
	out, err := json.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("cannot describe the sandbox: %w", err)
	}
	return out, nil
}

// tmpOptions are those of /tmp. gVisor adds one of them where that is an overlay. A
// copy of the cell must have the same, and may have its /tmp as a layer where the
// cell has a directory.
func tmpOptions(spec *cell.Spec) []string {
	options := []string{"rbind", "rw"}
	for _, m := range spec.Mounts {
		if m.Target == "/tmp" && m.Kind == cell.Overlay {
			return options
		}
	}
	return append(options, "overlayfs_stale_read")
}

// runscArgs are the arguments of pando-runsc before its command.
func runscArgs(talks bool) []string {
	network, sockets := "none", "none"
	if talks { // with the keeper's SSH agent, too; the mounts have no other socket that anybody listens at
		network, sockets = "sandbox", "open"
	}
	return []string{"pando-runsc", "--root=" + stateDir, "--platform=systrap", "--network=" + network, "--host-uds=" + sockets, "--ignore-cgroups", "--overlay2=none", "--directfs=false", "--file-access=shared", "--file-access-mounts=shared", "--in-sandbox-cgroup=v2"}
}
