// Package doctor examines a host: what works, what each missing thing would
// add, and the fix. It changes nothing, and a healthy host gets no warning.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/linux/kvm"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/policy"
)

// Config is what a doctor works with.
type Config struct {
	Home    paths.Home
	Backend backend.Backend // the default one
	Gvisor  backend.Backend // that of gVisor; nil: not looked at
	Disk    func(context.Context, bool) (api.Disk, error)
	Copied  func() string          // the directory of which the state is a copy; "", or nil, when it is none
	Signer  func() (string, error) // what signs receipts, which it has tried; nil: not looked at
	Overlay func() string          // why overlayfs can't be used; "", or nil, when it can
	// Machines are what microVM cells run with; nil: not looked at.
	Machines Machines
	KVM      func() kvm.Verdict // whether virtual machines run in hardware; nil: this host is asked
}

// The words of a finding's status.
const (
	ok      = "ok"
	missing = "missing" // would add something
	broken  = "broken"  // the default path does not work without
	note    = "note"    // worth knowing
)

// New returns the doctor.
func New(cfg Config) func(context.Context) api.Diagnosis {
	return func(ctx context.Context) api.Diagnosis { return examine(ctx, &cfg) }
}

type examination struct {
	cfg  *Config
	host host
	root bool // runs as root
	out  api.Diagnosis
}

func (x *examination) add(name, status, found, adds, fix string) {
	x.out.Checks = append(x.out.Checks, api.Finding{Name: name, Status: status, Found: found, Adds: adds, Fix: fix})
}

func examine(ctx context.Context, cfg *Config) api.Diagnosis {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if cfg.KVM == nil {
		asked := *cfg
		asked.KVM = func() kvm.Verdict { return kvm.Look(kvm.This(machineLimit)) }
		cfg = &asked
	}
	x := &examination{cfg: cfg, host: host{kernel: kernel()}, root: os.Geteuid() == 0}
	x.out.Checks, x.out.Backend = []api.Finding{}, cfg.Backend.Name()
	x.out.Kernel, x.out.Host, x.out.User = x.host.kernel, x.host.name(), userName()
	caps, err := cfg.Backend.Probe(ctx)
	x.namespaces(err)
	x.kernelParts(caps)
	x.network(ctx)
	x.files(ctx)
	x.limits(caps)
	x.ids()
	x.gvisor(ctx)
	x.machines(ctx)
	x.out.OK = true
	for _, f := range x.out.Checks {
		if f.Status == broken {
			x.out.OK = false
		}
	}
	return x.out
}

// namespaces says whether cells can be made at all, and knows the hosts on
// which they can't.
func (x *examination) namespaces(err error) {
	if err == nil {
		x.add("user namespaces", ok, "cells can be made without root", "", "")
		return
	}
	found, fix := err.Error(), cell.HintOf(err)
	switch {
	case x.host.sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1" && !x.root:
		found = "AppArmor keeps programs without a profile from using user namespaces (Ubuntu 23.10 and later)"
		fix = "allow it for pando alone: " + apparmorProfile()
	case x.host.sysctl("kernel/unprivileged_userns_clone") == "0" && !x.root:
		found = "user namespaces are switched off for ordinary users"
		fix = "sudo sysctl -w kernel.unprivileged_userns_clone=1 (keep it: echo kernel.unprivileged_userns_clone=1 | sudo tee /etc/sysctl.d/60-pando.conf)"
	case x.host.sysctl("user/max_user_namespaces") == "0":
		found = "this host allows no user namespaces"
		fix = "sudo sysctl -w user.max_user_namespaces=15000 (keep it: echo user.max_user_namespaces=15000 | sudo tee /etc/sysctl.d/60-pando.conf)"
	case x.host.wsl() && !strings.Contains(x.host.kernel, "WSL2"):
		found = "this is WSL 1: its kernel has no namespaces"
		fix = "in PowerShell: wsl --set-version DISTRIBUTION 2 (wsl --list shows the names)"
	case x.host.container() != "":
		found = "this is a " + x.host.container() + " container, and its profile forbids user namespaces"
		fix = "start the container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined, or run pando outside it"
	}
	x.add("user namespaces", broken, found, "isolation: without them pando runs nothing but --backend none",
		cmp.Or(fix, "ask the administrator of this host which policy forbids it (sudo dmesg | tail shows what was refused); until then run without isolation: --backend none"))
}

// apparmorProfile is the remedy that Ubuntu documents: a profile that gives
// one program the right to make user namespaces.
func apparmorProfile() string {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		exe = "/usr/bin/pando"
	}
	return fmt.Sprintf("printf 'abi <abi/4.0>,\\ninclude <tunables/global>\\nprofile pando %s flags=(unconfined) {\\n  userns,\\n}\\n' | sudo tee /etc/apparmor.d/pando && sudo apparmor_parser -r /etc/apparmor.d/pando", exe)
}

func (x *examination) kernelParts(caps backend.Caps) {
	if unix.Prctl(unix.PR_GET_SECCOMP, 0, 0, 0, 0) == nil || x.host.sysctl("kernel/seccomp/actions_avail") != "" {
		x.add("seccomp", ok, "system calls of cells are filtered", "", "")
	} else {
		x.add("seccomp", broken, "this kernel has no seccomp filters", "the filter of system calls", "use a kernel with CONFIG_SECCOMP_FILTER")
	}
	if abi := linux.LandlockABI(); abi > 0 {
		x.add("landlock", ok, fmt.Sprintf("version %d of its interface", abi), "", "")
	} else {
		x.add("landlock", missing, "this kernel has no Landlock, or it is not switched on", "a second, independent bound on what a cell can write",
			"use Linux 5.13 or later and boot with landlock in the lsm= list")
	}
}

// network says whether cells may talk here, and by which link.
func (x *examination) network(ctx context.Context) {
	c, can := x.cfg.Backend.(backend.Connector)
	if !can {
		return
	}
	const adds = "cells that talk, as far as a policy allows"
	switch kind, err := c.Link(ctx); {
	case err != nil:
		x.add("network", missing, err.Error(), adds, cmp.Or(cell.HintOf(err), "load the kernel's module for one of them: sudo modprobe tun, or sudo modprobe veth"))
	case kind == "tun":
		x.add("network", ok, "cells with a network rule talk through a gateway, over a TUN", "", "")
	case kind == "socket":
		x.add("network", ok, "cells with a network rule talk through a gateway, over a socket", "", "")
	default:
		x.add("network", ok, "cells with a network rule talk through a gateway, over a veth pair", "", "")
	}
}

func (x *examination) files(ctx context.Context) {
	why := ""
	if x.cfg.Overlay != nil {
		why = x.cfg.Overlay()
	}
	if why == "" {
		x.add("overlayfs", ok, "checkpoints and restores cost the same whatever the workspace's size", "", "")
	} else {
		x.add("overlayfs", missing, why, "checkpoints without copying; pando copies workspaces instead",
			"set PANDO_HOME to a directory on ext4, xfs or btrfs")
	}
	if reflink(x.cfg.Home.State) {
		x.add("reflink", ok, "file data is shared when it is copied", "", "")
	} else {
		x.add("reflink", missing, "the file system of "+x.cfg.Home.State+" copies data", "faster imports, and checkpoints of running cells without copying",
			"set PANDO_HOME to a directory on xfs or btrfs")
	}
	if x.cfg.Copied != nil {
		if from := x.cfg.Copied(); from != "" {
			x.add("state", note, "a copy of "+from+": both sign with the same key, and what each signs from now on the other does not have", "",
				"go on with one of them; if that is this one, remove "+x.cfg.Home.Installation()+" while no daemon runs")
		}
	}
	if x.cfg.Signer != nil {
		if what, err := x.cfg.Signer(); err != nil {
			x.add("signer", broken, err.Error(), "receipts, without which no run ends well", "mend the program, or what it reaches: "+x.cfg.Home.Signer())
		} else {
			x.add("signer", ok, what, "", "")
		}
	}
	d, err := x.cfg.Disk(ctx, false)
	if err != nil {
		x.add("disk", broken, err.Error(), "", "look at "+x.cfg.Home.State)
		return
	}
	near := d.Warning != ""
	d.Next, d.Removed, d.Warning = []api.DiskObject{}, []api.DiskObject{}, "" // they name what not every caller sees
	x.out.Disk = &d
	found := fmt.Sprintf("pando holds %s of %s in %s, %s of it can be freed; %s are free",
		policy.FormatSize(d.Held), policy.FormatSize(d.Budget), d.State, policy.FormatSize(d.Freeable), policy.FormatSize(d.Free))
	switch {
	case d.Free < 64<<20:
		x.add("disk", broken, found, "room to work", "free some space: pando gc --yes")
	case near:
		x.add("disk", note, found, "", "pando df says what is removed next if it grows")
	case d.Free < 2<<30:
		x.add("disk", note, found, "", "pando gc --yes")
	default:
		x.add("disk", ok, found, "", "")
	}
}

func (x *examination) limits(caps backend.Caps) {
	delegate := "have the daemon start in a cgroup that is yours: pando daemon stop; systemd-run --user --scope -p Delegate=yes pando ls"
	if x.root {
		delegate = "mount the cgroup hierarchies at /sys/fs/cgroup"
	}
	for _, l := range []struct{ name, lacks, adds string }{
		{"memory limit", caps.MemoryLimit, "--memory"},
		{"cpu limit", caps.CPULimit, "--cpus"},
		{"process limit", caps.ProcessLimit, "--pids"},
	} {
		if l.lacks == "" {
			x.add(l.name, ok, "works", "", "")
		} else {
			x.add(l.name, missing, l.lacks, l.adds, delegate)
		}
	}
	if caps.DiskLimit == "" {
		x.add("disk limit", ok, "works: --disk gives a cell a file system of its own; elsewhere what it writes is counted", "", "")
	} else {
		x.add("disk limit", ok, caps.DiskLimit, "", "")
	}
}

func (x *examination) ids() {
	if x.root {
		x.add("users in cells", ok, "65,536 users, none of them one of this host", "", "")
		return
	}
	x.add("users in cells", note, "a cell has one user, you: chown and package managers don't work in it", "", "")
}

// gvisor says whether cells can have a kernel of their own, by making one.
func (x *examination) gvisor(ctx context.Context) {
	if x.cfg.Gvisor == nil {
		return
	}
	_, err := x.cfg.Gvisor.Probe(ctx)
	if t, can := x.cfg.Gvisor.(backend.Trier); can && err == nil {
		err = t.Try(ctx)
	}
	if err != nil {
		x.add("gvisor", missing, err.Error(), "cells with a kernel of their own: --backend gvisor", cmp.Or(cell.HintOf(err), "build pando with `make`"))
		return
	}
	x.add("gvisor", ok, "a cell with gVisor's application kernel was made, and ran a command: --backend gvisor", "", "")
}

func userName() string {
	uid := strconv.Itoa(os.Geteuid())
	if u, err := user.LookupId(uid); err == nil {
		return u.Username + " (" + uid + ")"
	}
	return uid
}

func kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
