// Package machine makes a Linux that has just been booted in a virtual machine into
// the inside of a cell: what pando-guest does as that Linux's first process before it
// is what it is in every sandbox (guest.ServeMachine).
//
//	kernel ── /init, that is pando-guest, in an initramfs with /modules
//	  │ /proc, /sys, /dev
//	  │ modules, in the order of their names
//	  │ ports of virtio-serial: "guest" and "files"
//	  │ the cell's files, asked for through the port "files", at /cell
//	  │ /cell/proc, sys, dev: the machine's own
//	  │ loopback, and the link to the cell's gateway
//	  │ /cell becomes /
//	  ▼ the keeper is greeted through the port "guest"
//
// The keeper sends the machine's identity and the time after the greeting (guest.Adoption),
// even to a machine that is no copy.
//
// Earlier errors are sent in the answer to the keeper's greeting, if there is a port, and to
// the console. The machine ends with its first process, which ends with its keeper.
//
// Orphans. No process of the cell ever becomes a child of the machine's first process. They
// live in a PID namespace below. Its own first process reaps them, and their filter refuses
// CLONE_PARENT. The children of the guest are only those that it forked itself, and the guest
// waits for each. A loop that waits for any child would only steal these exits.
package machine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/guest"
	"github.com/pando-dev/pando/internal/linux"
)

// Names of the ports on the machine's command line.
const (
	portGuest = "guest"
	portFiles = "files"
)

// cellDir is where the cell's files are mounted before they become the root.
const cellDir = "/cell"

// portLimit is the time limit for the ports to appear and to be connected.
const portLimit = 30 * time.Second

// shortLimit replaces portLimit if a module could not be loaded.
const shortLimit = 5 * time.Second

// Files mounts a cell's files inside its machine.
type Files struct {
	// Mount mounts the files at target and returns the device for Courier.
	Mount func(target string) (dev *os.File, err error)
	// Courier forwards requests of the kernel to conn, and the answers back.
	Courier func(dev *os.File, conn io.ReadWriter) Courier
	// Settle is called when the files are served, before this process opens any of them.
	Settle func(target string) error
}

// A Courier transports files, and can be paused.
type Courier interface {
	guest.Files
	// Run returns when the files or the connection have ended.
	Run() error
}

// Here reports whether this process is the first of a virtual machine of pando. The kernel
// passes unknown parameters of its command line in the environment of the first process.
func Here() bool { return os.Getpid() == 1 && os.Getenv("pando") == "1" }

// Run is the main function of a machine's first process. It does not return.
func Run(files Files) {
	if err := run(files); err != nil {
		fmt.Fprintln(os.Stderr, "pando-guest:", err)
	}
	unix.Sync()
	// A VMM that must end with its machine ends at a reboot or a power-off.
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	for {
		unix.Pause()
	}
}

func run(files Files) error {
	if err := kernelFiles(); err != nil {
		return err
	}
	if err := linux.CoarseTimers(guest.TimerSlack); err != nil {
		return err
	}
	limit := portLimit
	loaded := loadModules("/modules")
	if loaded != nil { // logged now: without a port it reaches only the console
		fmt.Fprintln(os.Stderr, "pando-guest:", loaded)
		limit = shortLimit
	}
	os.RemoveAll("/modules") // the initramfs occupies memory
	ports, err := openPorts("/sys/class/virtio-ports", "/dev", time.Now().Add(limit), portGuest, portFiles)
	if ports[portGuest] == nil {
		return errors.Join(loaded, err)
	}
	keeper := ports[portGuest]
	if err := keeper.connected(portLimit); err != nil {
		return errors.Join(loaded, err)
	}
	var carried guest.Files
	if err = errors.Join(loaded, err); err == nil {
		carried, err = enter(files, ports[portFiles])
	}
	if err != nil {
		if cell.KindOf(err) == cell.Internal {
			err = cell.Errorf(cell.Unavailable, "machine.Run", "", "cannot prepare the cell's machine: %w", err)
		}
		return errors.Join(err, guest.Refuse(keeper.fd, err))
	}
	return guest.ServeMachine(keeper.fd, carried)
}

// enter makes the cell's files the root, and returns their courier.
func enter(files Files, port *port) (guest.Files, error) {
	if err := port.connected(portLimit); err != nil {
		return nil, err
	}
	if files.Mount == nil {
		return nil, cell.Errorf(cell.Unsupported, "machine.Run", "", "cannot mount the cell's files: this guest was built without them")
	}
	if err := os.MkdirAll(cellDir, 0o755); err != nil {
		return nil, err
	}
	dev, err := files.Mount(cellDir)
	if err != nil {
		return nil, err
	}
	c := files.Courier(dev, port)
	go func() { // for the lifetime of the machine
		err := c.Run()
		fmt.Fprintln(os.Stderr, "pando-guest: the cell's files are gone:", err)
	}()
	if err := files.Settle(cellDir); err != nil {
		return nil, err
	}
	if err := inside(cellDir); err != nil {
		return nil, err
	}
	if err := settings("/proc/sys"); err != nil {
		return nil, err
	}
	if err := network(); err != nil {
		return nil, err
	}
	return c, switchRoot(cellDir)
}

// A setting is a sysctl. Those that not every kernel has may be missing.
type setting struct{ name, value string }

// settingsOf lists the sysctls of a cell's machine. As in every cell there are no user
// namespaces, and all ports are unprivileged. The kernel must not execute programs of the
// cell's files as its own. The last ones avoid timers that would wake an idle processor several
// times a second, because there may be hundreds of machines.
var settingsOf = []setting{
	{"user/max_user_namespaces", "0"},
	{"vm/overcommit_memory", "1"}, // overcommitted memory fails when it is touched, as on a large host
	{"net/ipv4/ip_unprivileged_port_start", "0"},
	{"net/ipv4/ping_group_range", "0 0"},
	{"kernel/modprobe", "\n"},
	{"kernel/modules_disabled", "1"},
	{"kernel/core_pattern", "core"},
	{"kernel/dmesg_restrict", "1"},
	{"kernel/watchdog", "0"}, // on a busy host it would also raise false alarms
	{"vm/compaction_proactiveness", "0"},
	{"vm/stat_interval", "60"},
}

func settings(dir string) error {
	for _, s := range settingsOf {
		err := os.WriteFile(dir+"/"+s.name, []byte(s.value), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot set %s: %w", strings.ReplaceAll(s.name, "/", "."), err)
		}
	}
	return nil
}
