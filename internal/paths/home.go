// Package paths knows where pando keeps its things: state, cache, keys, logs
// and sockets. It creates the directories, private to their owner, and nothing
// in them.
package paths

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Home is the set of directories of one installation (one per user, or one
// per host for root).
type Home struct {
	State string // cells, layers, runs, ledger, keys: what must not be lost
	Cache string // what can be made again
	Run   string // sockets and locks: gone after a reboot
	// Policy is the user's policy file, "" where there is no place for one. It
	// need not be there.
	Policy string
}

// HostPolicy is the policy file of the host, which applies to all its users.
const HostPolicy = "/etc/pando/policy.yaml"

// Find returns the directories: under PANDO_HOME, an absolute path, when it is set, else
// /var/lib/pando, /var/cache/pando and /run/pando for root, else the XDG
// directories of the user. Where the daemon of that state has its sockets elsewhere, that
// is where they are.
func Find(getenv func(string) string, uid int) (Home, error) {
	if dir := getenv("PANDO_HOME"); dir != "" {
		if !filepath.IsAbs(dir) { // it would be another state in each directory
			return Home{}, fmt.Errorf("cannot use PANDO_HOME=%s: it is relative; write an absolute path", dir)
		}
		h := Home{State: filepath.Join(dir, "state"), Cache: filepath.Join(dir, "cache"), Run: filepath.Join(dir, "run"), Policy: filepath.Join(dir, "policy.yaml")}
		return h.found(), nil
	}
	user := getenv("HOME")
	config := getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(config) && user != "" {
		config = filepath.Join(user, ".config")
	}
	if uid == 0 {
		h := Home{State: "/var/lib/pando", Cache: "/var/cache/pando", Run: "/run/pando"}
		if filepath.IsAbs(config) {
			h.Policy = filepath.Join(config, "pando", "policy.yaml")
		}
		return h.found(), nil
	}
	if user == "" {
		return Home{}, fmt.Errorf("cannot find a place for pando's state: neither PANDO_HOME nor HOME is set")
	}
	pick := func(env, dflt string) string {
		if d := getenv(env); filepath.IsAbs(d) {
			return filepath.Join(d, "pando")
		}
		return filepath.Join(user, dflt, "pando")
	}
	h := Home{State: pick("XDG_DATA_HOME", ".local/share"), Cache: pick("XDG_CACHE_HOME", ".cache"), Policy: filepath.Join(config, "pando", "policy.yaml")}
	if d := getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(d) && isDir(d) {
		h.Run = filepath.Join(d, "pando")
	} else {
		h.Run = filepath.Join(h.State, "run")
	}
	return h.found(), nil
}

func isDir(p string) bool {
	st, err := os.Stat(p)
	return err == nil && st.IsDir()
}

// Make creates the directories, each with mode 0700.
func (h Home) Make() error {
	for _, d := range []string{h.State, h.Cache, h.Run, h.Keys(), h.Credentials(), h.Tokens(), h.Sandboxes(), h.Cells(), h.Runs(), h.Layers(), h.Memory(), h.Ledger(), h.Keepers(), h.Scratch()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return fmt.Errorf("cannot create %s: %w", d, err)
		}
	}
	return nil
}

// Socket is where the daemon listens.
func (h Home) Socket() string { return filepath.Join(h.Run, "pando.sock") }

// Lock is held by the running daemon. It is in the state directory, which has one daemon
// whatever the environment of its clients.
func (h Home) Lock() string { return filepath.Join(h.State, "pando.lock") }

// ServeLock is held by a pando serve: its daemon comes back when it fails.
func (h Home) ServeLock() string { return filepath.Join(h.State, "serve.lock") }

// Holder is what the daemon that took the lock last wrote into it.
type Holder struct {
	PID      int    `json:"pid"`
	Host     string `json:"host"`     // see Host
	HostName string `json:"hostname"` // for people
	State    string `json:"state"`    // which state it has: the lock of a copy says that of the original
	Run      string `json:"run"`      // where its sockets are
	Ended    bool   `json:"ended,omitempty"`
}

// Holder reads the lock; the zero Holder if no process has it.
func (h Home) Holder() (o Holder) {
	b, _ := os.ReadFile(h.Lock())
	json.Unmarshal(b, &o)
	return o
}

// Host tells this host from others that see the same files.
func Host() string {
	id, _ := os.ReadFile("/etc/machine-id")
	name, _ := os.Hostname()
	return strings.TrimSpace(string(id)) + "/" + name
}

// found is h with the sockets of the daemon that has its state, or had it and left
// keepers, if these lie elsewhere: two daemons with one state would have two views of it.
func (h Home) found() Home {
	o := h.Holder()
	if o.Run == "" || o.Run == h.Run || o.Host != Host() || !isDir(o.Run) || h.copiedFrom(o) {
		return h
	}
	there := h
	there.Run = o.Run
	if list, err := os.ReadDir(there.Keepers()); !h.Locked() && (err != nil || len(list) == 0) {
		return h
	}
	return there
}

// copiedFrom reports whether the lock was written in another state, of which this one is a
// copy: what its daemon and keepers hold is not in this one. A state that was moved is the
// same.
func (h Home) copiedFrom(o Holder) bool {
	there, err := os.Stat(o.State)
	if err != nil {
		return false
	}
	here, err := os.Stat(h.State)
	return err == nil && !os.SameFile(there, here)
}

// Config has the defaults of flags, beside the user's policy; "" where there is no place for it.
func (h Home) Config() string {
	if h.Policy == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(h.Policy), "config.json")
}

// Signer names the program that signs receipts, beside the user's policy.
func (h Home) Signer() string {
	if h.Policy == "" {
		return "/etc/pando/signer.yaml"
	}
	return filepath.Join(filepath.Dir(h.Policy), "signer.yaml")
}

// Allowed says which policy files of projects the user has allowed.
func (h Home) Allowed() string { return filepath.Join(h.State, "allowed-policies.json") }

// Log is the daemon's own log.
func (h Home) Log() string { return filepath.Join(h.State, "daemon.log") }

// Registry is the journal of cells, checkpoints and runs.
func (h Home) Registry() string { return filepath.Join(h.State, "registry.log") }

// Credentials holds what is lent to cells, encrypted.
func (h Home) Credentials() string { return filepath.Join(h.State, "credentials") }

// Tokens holds the records of tokens: their owners and digests.
func (h Home) Tokens() string { return filepath.Join(h.State, "tokens") }

// Installation has the installation's name, and which ids of the host its cells use.
func (h Home) Installation() string { return filepath.Join(h.State, "installation") }

// Operations is the journal of operations.
func (h Home) Operations() string { return filepath.Join(h.State, "operations.log") }

// Idempotency is the journal of idempotency keys.
func (h Home) Idempotency() string { return filepath.Join(h.State, "idempotency.log") }

// Unreadable counts how often an input ended the process that parses it.
func (h Home) Unreadable() string { return filepath.Join(h.State, "unreadable.json") }

// Reserve is space kept back for the end of a run that filled the disk.
func (h Home) Reserve() string { return filepath.Join(h.State, "reserve") }

// LastReserve is space kept back for removals alone.
func (h Home) LastReserve() string { return filepath.Join(h.State, "reserve.last") }

// ToldLogout is there once the user was told that cells end at the logout.
func (h Home) ToldLogout() string { return filepath.Join(h.State, "told-logout") }

// Uploads holds sources that were sent by callers on other hosts, until they are imported.
func (h Home) Uploads() string { return filepath.Join(h.State, "uploads") }

// Applies holds journals of applies under way.
func (h Home) Applies() string { return filepath.Join(h.State, "apply") }

// Empty is the source of cells that have none: a directory in which there is nothing.
func (h Home) Empty() string { return filepath.Join(h.State, "empty") }

// Audit is the log of all requests with their callers.
func (h Home) Audit() string { return filepath.Join(h.State, "audit.jsonl") }

// Keys holds the installation's keys: the one that signs, and the one that
// credentials are encrypted for.
func (h Home) Keys() string { return filepath.Join(h.State, "keys") }

// Cells holds what belongs to one cell alone: its home and /tmp.
func (h Home) Cells() string { return filepath.Join(h.State, "cells") }

// Sandboxes holds what programs written for E2B have in their cells beside files:
// which processes are theirs.
func (h Home) Sandboxes() string { return filepath.Join(h.State, "sandboxes") }

// Runs holds a folder for each run.
func (h Home) Runs() string { return filepath.Join(h.State, "runs") }

// Layers holds the layers of workspaces.
func (h Home) Layers() string { return filepath.Join(h.State, "layers") }

// Memory is where memory images are while a cell is captured, or begins with one.
func (h Home) Memory() string { return filepath.Join(h.State, "memory") }

// Trees holds the objects that tree digests are made of.
func (h Home) Trees() string { return filepath.Join(h.State, "trees") }

// Sources holds what was last seen of each imported directory.
func (h Home) Sources() string { return filepath.Join(h.State, "sources") }

// Ledger holds the Merkle log of receipts.
func (h Home) Ledger() string { return filepath.Join(h.State, "ledger") }

// Images holds prepared root file systems.
func (h Home) Images() string { return filepath.Join(h.Cache, "images") }

// Machines holds what microVMs boot from: the guest kernel, its first files and a copy of QEMU.
func (h Home) Machines() string { return filepath.Join(h.Cache, "microvm") }

// Keepers holds the sockets and locks of living keepers.
func (h Home) Keepers() string { return filepath.Join(h.Run, "keepers") }

// Scratch is an empty directory that private mount namespaces cover with
// mount points of their own.
func (h Home) Scratch() string { return filepath.Join(h.Run, "mnt") }
