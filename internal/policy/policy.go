// Package policy is what says what a cell may do: the file's language, the merging of layers, the
// canonical form. Package decide answers requests by it. Neither touches the host.
//
// A policy comes from a file, from flags, and from defaults that are all in this file. It
// becomes an Effective policy. The gateway enforces its canonical form, and the digest in a
// receipt is of exactly these bytes.
package policy

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/agent/price"
	"github.com/pando-dev/pando/internal/cell"
)

// Version is that of the canonical form and of the file format.
const Version = 1

// Effective is what governs a cell, after files, flags and defaults were
// merged.
type Effective struct {
	Version     int         `json:"version"`
	Isolation   Isolation   `json:"isolation"`
	Secrets     Secrets     `json:"secrets"`
	Files       Files       `json:"files"`
	Environment Environment `json:"environment"`
	Processes   Processes   `json:"processes"`
	Network     Network     `json:"network"`
	// Credentials are those that are lent to the cell, by handle.
	Credentials []Credential `json:"credentials"`
	Limits      Limits       `json:"limits"`
	Approvals   Approvals    `json:"approvals"`
	// Home is left out of the canonical form where it says nothing.
	Home Home `json:"home,omitzero"`
	// Prices are the user's own of models, for budgets. The first that matches counts, and they come
	// before those that are built in.
	Prices []price.Own `json:"prices,omitempty"`
	// Findings is left out of the canonical form where it says nothing.
	Findings Findings `json:"findings,omitzero"`
	Accept   Accept   `json:"accept,omitzero"`
	Keep     Keep     `json:"keep,omitzero"`
}

// Files says which of the host's files a cell sees besides its image.
type Files struct {
	Mounts  []Mount  `json:"mounts"`
	Secrets []string `json:"secrets"` // paths of the workspace that come in although they look secret
	// Hidden and ReadOnly are paths of the workspace.
	Hidden   []string `json:"hidden"`
	ReadOnly []string `json:"read_only"`
	// ReadOnlyRoot says that commands can't write to the image. It is left out of the canonical form
	// where they can.
	ReadOnlyRoot bool `json:"read_only_root,omitempty"`
}

// Mount is one directory or file of the host.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	Writable bool   `json:"writable"`
}

// Environment says which variables a command gets besides those of its image.
type Environment struct {
	Set []string `json:"set"` // names of variables with given values; the values are not policy
}

// Processes says what programs may do to each other, and which don't run.
// Tracing and nested namespaces are always refused today; the canonical form
// says so.
type Processes struct {
	Trace            bool     `json:"trace"`
	NestedNamespaces bool     `json:"nested_namespaces"`
	Deny             []string `json:"deny"` // names or paths of programs
}

// Approvals says how a person is asked.
type Approvals struct {
	Timeout int64  `json:"timeout_ms"` // then it is denied
	Webhook string `json:"webhook"`    // URL that is told, "" for none
}

// Limits bounds what a cell uses.
type Limits struct {
	CPUs    float64 `json:"cpus"`   // cores; 0: the host's share
	Memory  int64   `json:"memory"` // bytes
	PIDs    int64   `json:"pids"`
	Disk    int64   `json:"disk"`       // bytes
	Timeout int64   `json:"timeout_ms"` // 0: none
	Egress  int64   `json:"egress"`     // bytes that leave the cell in one run; 0: any number
	Forks   int64   `json:"forks"`      // cells made of it; 0: any number
	Execs   int64   `json:"executions"` // commands run in it; 0: any number
	// Budget is of the cell and its forks together.
	Budget Budget `json:"budget,omitzero"`
}

// Host is what the defaults depend on.
type Host struct {
	CPUs   int
	Memory int64 // bytes
}

// Defaults is the policy of a run without a file and without flags.
func Defaults(h Host) Effective {
	return Effective{
		Version: Version, Isolation: Isolation{Least: Strengths()[0]}, Secrets: SecretsName,
		Files: Files{Mounts: []Mount{}, Secrets: []string{}, Hidden: []string{}, ReadOnly: []string{}}, Environment: Environment{Set: []string{}},
		Processes:   Processes{Deny: []string{}},
		Network:     Network{Mode: ModeNone, Allow: []Rule{}, Ask: []Rule{}, Deny: []Rule{}},
		Credentials: []Credential{},
		Approvals:   Approvals{Timeout: (10 * time.Minute).Milliseconds()},
		Limits: Limits{
			Memory: max(512<<20, h.Memory/4*3),
			PIDs:   4096,
			Disk:   20 << 30,
		},
	}
}

// Canonical is the form that is digested: JSON with fields in a fixed order,
// lists sorted, no insignificant space.
func (e Effective) Canonical() []byte {
	e.Files.Mounts = append([]Mount{}, e.Files.Mounts...)
	sort.Slice(e.Files.Mounts, func(i, j int) bool { return e.Files.Mounts[i].Target < e.Files.Mounts[j].Target })
	e.Files.Secrets, e.Files.Hidden, e.Files.ReadOnly = sorted(e.Files.Secrets), sorted(e.Files.Hidden), sorted(e.Files.ReadOnly)
	e.Environment.Set, e.Home = sorted(e.Environment.Set), e.Home.canonical()
	e.Findings = e.Findings.canonical()
	e.Accept = e.Accept.canonical()
	e.Processes.Deny = sorted(e.Processes.Deny)
	e.Network = e.Network.canonical()
	e.Credentials = canonicalCredentials(e.Credentials)
	b, _ := json.Marshal(e) // numbers and strings: cannot fail
	return b
}

// Digest identifies the policy.
func (e Effective) Digest() cell.Digest { return cell.Sum(e.Canonical()) }

func sorted(list []string) []string {
	out := append([]string{}, list...)
	sort.Strings(out)
	return slices.Compact(out)
}

// Talks reports whether the cell has a network beside its own loopback.
func (e Effective) Talks() bool { return len(e.Network.Allow)+len(e.Network.Ask) > 0 }

// Downgrades names what the policy itself makes weaker.
func (e Effective) Downgrades() (out []string) {
	for _, m := range e.Files.Mounts {
		if m.Writable {
			out = append(out, "writable mount "+m.Target+" is outside rollback")
		}
	}
	for _, s := range e.Files.Secrets {
		out = append(out, "secret "+s+" is inside the cell")
	}
	for _, f := range e.Home.Files {
		if f.Secret {
			out = append(out, "secret ~/"+f.Target+" is inside the cell")
		}
	}
	for _, c := range e.Credentials {
		if c.Unpinned {
			out = append(out, "credential "+c.Handle+" is not pinned: requests to its hosts may carry other keys")
		}
	}
	return out
}

// CellLimits gives the limits in the backend's words.
func (l Limits) CellLimits() cell.Limits {
	return cell.Limits{CPUs: l.CPUs, Memory: l.Memory, PIDs: l.PIDs, Disk: l.Disk, Timeout: time.Duration(l.Timeout) * time.Millisecond}
}

// ParseMount reads SRC:DST[:rw|:ro].
func ParseMount(s string) (Mount, error) {
	bad := func(why string) (Mount, error) {
		return Mount{}, cell.Errorf(cell.Invalid, "policy.ParseMount", "write it as SRC:DST or SRC:DST:rw", "%q is no mount: %s", s, why)
	}
	parts := strings.Split(s, ":")
	m := Mount{}
	switch {
	case len(parts) == 3 && parts[2] == "rw":
		m.Writable = true
	case len(parts) == 3 && parts[2] == "ro", len(parts) == 2:
	default:
		return bad("it needs a source and a target")
	}
	m.Source, m.Target = parts[0], parts[1]
	if m.Source == "" || m.Target == "" {
		return bad("it needs a source and a target")
	}
	if strings.ContainsRune(s, 0) {
		return bad("it contains a NUL")
	}
	return m, nil
}

func (m Mount) String() string {
	if m.Writable {
		return m.Source + ":" + m.Target + ":rw"
	}
	return m.Source + ":" + m.Target
}

// ParseSize reads a number of bytes: "512M", "2GiB", "1.5g", "4096". Units
// are powers of 1024. Zero, negative and overflowing sizes are errors.
func ParseSize(s string) (int64, error) {
	bad := cell.Errorf(cell.Invalid, "policy.ParseSize", "write a number with K, M, G or T, such as 512M", "%q is no size", s)
	t := strings.ToLower(strings.TrimSpace(s))
	t = strings.TrimSuffix(strings.TrimSuffix(t, "b"), "i")
	mult := 1.0
	if t != "" {
		if i := strings.IndexByte("kmgt", t[len(t)-1]); i >= 0 {
			mult = math.Pow(1024, float64(i+1))
			t = t[:len(t)-1]
		}
	}
	n, err := strconv.ParseFloat(t, 64)
	if err != nil || math.IsNaN(n) || strings.ContainsAny(t, "xpe_") {
		return 0, bad
	}
	n *= mult
	if n < 1 || n >= math.MaxInt64 {
		return 0, bad
	}
	return int64(n), nil
}

// ParseCount reads a positive whole number.
func ParseCount(what, s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 {
		return 0, cell.Errorf(cell.Invalid, "policy.ParseCount", "give a whole number above zero", "%q is no number of %s", s, what)
	}
	return n, nil
}

// ParseCPUs reads a number of cores, which may have a fraction.
func ParseCPUs(s string) (float64, error) {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || !(n >= 0.01 && n <= 4096) {
		return 0, cell.Errorf(cell.Invalid, "policy.ParseCPUs", "give a number of cores such as 0.5 or 2", "%q is no number of cores", s)
	}
	return n, nil
}

// ParseTimeout reads a duration: "90s", "10m", "1h30m". It is kept in
// milliseconds, so that less than one would be none.
func ParseTimeout(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < time.Millisecond {
		return 0, cell.Errorf(cell.Invalid, "policy.ParseTimeout", "write it as 90s, 10m or 1h30m", "%q is no duration", s)
	}
	return d, nil
}

// CheckEnv accepts NAME=value for a command's environment.
func CheckEnv(kv string) (name string, err error) {
	name, _, ok := strings.Cut(kv, "=")
	if !ok || name == "" || strings.ContainsAny(kv, "\x00") || strings.ContainsAny(name, " \t\n") {
		return "", cell.Errorf(cell.Invalid, "policy.CheckEnv", "write it as NAME=value, or NAME to pass your own value", "%q is no variable", name)
	}
	return name, nil
}

// FormatSize is the inverse of ParseSize, for people.
func FormatSize(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	f, i := float64(n), 0
	for f >= 1024 && i < len(units)-1 {
		f /= 1024
		i++
	}
	if i == 0 || f == math.Trunc(f) {
		return fmt.Sprintf("%.0f %s", f, units[i])
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}
