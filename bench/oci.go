package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// The part of the OCI runtime specification (version 1.0.2, config.md and
// config-linux.md) that is needed to give a runtime what our cells have.
type ociConfig struct {
	Version  string     `json:"ociVersion"`
	Process  ociProcess `json:"process"`
	Root     ociRoot    `json:"root"`
	Hostname string     `json:"hostname"`
	Mounts   []ociMount `json:"mounts"`
	Linux    ociLinux   `json:"linux"`
}

type ociProcess struct {
	Terminal        bool                `json:"terminal"`
	User            ociUser             `json:"user"`
	Args            []string            `json:"args"`
	Env             []string            `json:"env"`
	Cwd             string              `json:"cwd"`
	Capabilities    map[string][]string `json:"capabilities"`
	NoNewPrivileges bool                `json:"noNewPrivileges"`
}

type ociUser struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

type ociRoot struct {
	Path     string `json:"path"`
	Readonly bool   `json:"readonly"`
}

type ociMount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options"`
}

type ociLinux struct {
	UIDMappings   []ociMapping   `json:"uidMappings"`
	GIDMappings   []ociMapping   `json:"gidMappings"`
	Namespaces    []ociNamespace `json:"namespaces"`
	MaskedPaths   []string       `json:"maskedPaths"`
	ReadonlyPaths []string       `json:"readonlyPaths"`
	Seccomp       *ociSeccomp    `json:"seccomp,omitempty"`
}

type ociMapping struct {
	ContainerID int `json:"containerID"`
	HostID      int `json:"hostID"`
	Size        int `json:"size"`
}

type ociNamespace struct {
	Type string `json:"type"`
}

type ociSeccomp struct {
	DefaultAction   string       `json:"defaultAction"`
	DefaultErrnoRet int          `json:"defaultErrnoRet"`
	Architectures   []string     `json:"architectures"`
	Syscalls        []ociSyscall `json:"syscalls"`
}

type ociSyscall struct {
	Names    []string `json:"names"`
	Action   string   `json:"action"`
	ErrnoRet *int     `json:"errnoRet,omitempty"`
	Args     []ociArg `json:"args,omitempty"`
}

type ociArg struct {
	Index    int    `json:"index"`
	Value    uint64 `json:"value"`
	ValueTwo uint64 `json:"valueTwo"`
	Op       string `json:"op"`
}

// bundle writes an OCI bundle that shows what a cell shows and returns its
// directory, and what of the filter it could not say.
func (v *cellView) bundle(ids ociMapping, args ...string) (dir string, gaps []string, err error) {
	root, err := v.root()
	if err != nil {
		return "", nil, err
	}
	if err := os.Chown(root, v.owner, v.owner); err != nil {
		return "", nil, err
	}
	filter, gaps := ociFilter()
	c := ociConfig{
		Version: "1.0.2", Hostname: "bench", Root: ociRoot{Path: root, Readonly: true},
		Process: ociProcess{
			User: ociUser{UID: ids.ContainerID, GID: ids.ContainerID}, Args: args, Env: v.env, Cwd: v.source, NoNewPrivileges: true,
			Capabilities: map[string][]string{"bounding": {}, "effective": {}, "permitted": {}, "inheritable": {}, "ambient": {}},
		},
		Mounts: v.ociMounts(),
		Linux: ociLinux{
			UIDMappings: []ociMapping{ids}, GIDMappings: []ociMapping{ids}, Seccomp: filter,
			Namespaces: []ociNamespace{{"user"}, {"mount"}, {"pid"}, {"network"}, {"ipc"}, {"uts"}, {"cgroup"}},
			// As backend namespace hides and protects them.
			MaskedPaths: []string{"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/latency_stats",
				"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/proc/sysrq-trigger"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"},
		},
	}
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return "", nil, err
	}
	return v.dir, gaps, os.WriteFile(filepath.Join(v.dir, "config.json"), b, 0o644)
}

func (v *cellView) ociMounts() []ociMount {
	list := []ociMount{
		{"/proc", "proc", "proc", []string{"nosuid", "nodev", "noexec"}},
		{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "mode=0755", "size=64k"}},
		{"/dev/pts", "devpts", "devpts", []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
		{"/dev/shm", "tmpfs", "tmpfs", []string{"nosuid", "nodev", "mode=1777"}},
	}
	for _, m := range v.mounts {
		switch kind := cell.MountKind(m.Kind); {
		case kind == cell.Link: // is in the root
		case kind == cell.Tmpfs:
			list = append(list, ociMount{m.Target, "tmpfs", "tmpfs", []string{"nosuid", "nodev", "mode=1777"}})
		case m.upper != "":
			list = append(list, ociMount{m.Target, "overlay", "overlay", []string{"nosuid", "nodev",
				"lowerdir=" + m.from, "upperdir=" + m.upper, "workdir=" + m.work, "userxattr"}})
		default:
			o := []string{"bind", "nosuid", "nodev"}
			if m.ReadOnly {
				o = append(o, "ro")
			}
			list = append(list, ociMount{m.Target, "bind", m.from, o})
		}
	}
	return list
}

// ociFilter is the table of our filter in the terms of the specification: rules that allow
// or fail, with conditions that must all hold, one for each argument. What the
// specification cannot express is allowed without a check, and named.
func ociFilter() (*ociSeccomp, []string) {
	f := &ociSeccomp{DefaultAction: "SCMP_ACT_ERRNO", DefaultErrnoRet: int(unix.EPERM), Architectures: []string{"SCMP_ARCH_X86_64"}}
	if linux.NativeArch == linux.ARM64 {
		f.Architectures = []string{"SCMP_ARCH_AARCH64"}
	}
	numbers := linux.SeccompNumbers(linux.NativeArch)
	var gaps []string
	for _, g := range linux.SeccompTable() {
		names := slices.DeleteFunc(strings.Fields(g.Calls), func(n string) bool { _, ok := numbers[n]; return !ok })
		if len(names) == 0 {
			continue
		}
		if g.Fate != linux.SeccompAllow {
			if errno := int(uint32(g.Fate) & unix.SECCOMP_RET_DATA); errno != f.DefaultErrnoRet {
				f.Syscalls = append(f.Syscalls, ociSyscall{Names: names, Action: "SCMP_ACT_ERRNO", ErrnoRet: &errno})
			}
			continue
		}
		rules, ok := alternatives(g.Check)
		if !ok {
			gaps = append(gaps, fmt.Sprintf("%s is allowed without its checks: the OCI format can't say them", strings.Join(names, ", ")))
			rules = [][]ociArg{nil}
		}
		for _, args := range rules {
			f.Syscalls = append(f.Syscalls, ociSyscall{Names: names, Action: "SCMP_ACT_ALLOW", Args: args})
		}
	}
	return f, gaps
}

// alternatives turns checks that must all pass into rules of which one must
// match. A check with a condition passes where the condition doesn't hold.
func alternatives(checks []linux.SeccompCheck) (rules [][]ociArg, ok bool) {
	rules = [][]ociArg{nil}
	for _, c := range checks {
		if c.Must.Not {
			return nil, false
		}
		if c.If == nil {
			if rules, ok = product(rules, c.Must); !ok {
				return nil, false
			}
			continue
		}
		var next [][]ociArg
		for _, r := range rules {
			i := slices.IndexFunc(r, func(a ociArg) bool { return a.Index == c.If.Arg && a.Op == "SCMP_CMP_EQ" })
			if i < 0 || c.If.Mask != 0 || c.If.Not {
				return nil, false // whether it holds is not known from what the rule says already
			}
			if !slices.Contains(c.If.In, uint32(r[i].Value)) {
				next = append(next, r)
				continue
			}
			more, ok := product([][]ociArg{r}, c.Must)
			if !ok {
				return nil, false
			}
			next = append(next, more...)
		}
		rules = next
	}
	return rules, true
}

// product adds a condition to each rule, one alternative for each value.
func product(rules [][]ociArg, m linux.SeccompMatch) (out [][]ociArg, ok bool) {
	for _, r := range rules {
		for _, v := range m.In {
			a := ociArg{Index: m.Arg, Value: uint64(v), Op: "SCMP_CMP_EQ"}
			if m.Mask != 0 {
				a = ociArg{Index: m.Arg, Value: uint64(m.Mask), ValueTwo: uint64(v), Op: "SCMP_CMP_MASKED_EQ"}
			}
			next := slices.Clone(r)
			if i := slices.IndexFunc(r, func(b ociArg) bool { return b.Index == a.Index }); i >= 0 {
				// Two masks that are both to be zero are one.
				if r[i].Op != "SCMP_CMP_MASKED_EQ" || a.Op != r[i].Op || r[i].ValueTwo != 0 || a.ValueTwo != 0 {
					return nil, false
				}
				next[i].Value |= a.Value
			} else {
				next = append(next, a)
			}
			out = append(out, next)
		}
	}
	return out, true
}
