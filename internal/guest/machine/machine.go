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
// Who the machine is and what time it is the keeper says when it has been greeted
// (guest.Adoption), also in a machine that is no copy.
//
// What goes wrong before is told to the keeper in the answer to its greeting, if there
// is a port, and to the console. The machine ends with its first process, and that
// with its keeper.
//
// Orphans. No process of the cell ever becomes a child of the machine's first process:
// they live in a pid namespace below, whose own first process reaps them, and can't
// make siblings of themselves (CLONE_PARENT is refused by their filter). So only what
// the guest forks itself is its child, and each of those has somebody who waits for
// it; a loop that waits for any child would only take exits from these.
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

// Names of the ports, as the machine's command line has them.
const (
	portGuest = "guest"
	portFiles = "files"
)

// where the cell's files are mounted before they are all there is.
const cellDir = "/cell"

// portLimit bounds how long it is waited for the ports, and for who is behind them.
const portLimit = 30 * time.Second

// shortLimit is portLimit where a module could not be loaded.
const shortLimit = 5 * time.Second

// Files are a cell's files, from inside of its machine.
type Files struct {
	// Mount mounts them at target and returns what Courier carries.
	Mount func(target string) (dev *os.File, err error)
	// Courier hands requests of the kernel to conn and answers back.
	Courier func(dev *os.File, conn io.ReadWriter) Courier
	// Settle is called when they are served, before this process opens any of them.
	Settle func(target string) error
}

// A Courier carries files, and can be held.
type Courier interface {
	guest.Files
	// Run returns when the files or the connection have ended.
	Run() error
}

// Here reports whether this process is the first of a virtual machine of ours. The
// kernel hands on what it doesn't know of its command line as the first process's
// environment.
func Here() bool { return os.Getpid() == 1 && os.Getenv("pando") == "1" }

// Run is all that the first process of a machine does. It does not return.
func Run(files Files) {
	if err := run(files); err != nil {
		fmt.Fprintln(os.Stderr, "pando-guest:", err)
	}
	unix.Sync()
	// A VMM that is told to end with its machine ends by either.
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
	if loaded != nil { // said now: without a port nobody else hears it
		fmt.Fprintln(os.Stderr, "pando-guest:", loaded)
		limit = shortLimit
	}
	os.RemoveAll("/modules") // the initramfs is memory
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

// enter makes the cell's files the root, and returns who carries them.
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
	go func() { // for as long as the machine lives
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

// A setting is one of the kernel's. Those that not every kernel has may be missing.
type setting struct{ name, value string }

// settingsOf are those of a cell's machine: as in every cell no user namespaces and
// every port for everybody, and nothing by which the kernel would execute a program
// of the cell's files as its own. What the last ones have rest would wake an idle
// processor several times a second, and there may be hundreds of machines.
var settingsOf = []setting{
	{"user/max_user_namespaces", "0"},
	{"vm/overcommit_memory", "1"}, // who asks for more than there is ends when it is touched, as on a large host
	{"net/ipv4/ip_unprivileged_port_start", "0"},
	{"net/ipv4/ping_group_range", "0 0"},
	{"kernel/modprobe", "\n"},
	{"kernel/modules_disabled", "1"},
	{"kernel/core_pattern", "core"},
	{"kernel/dmesg_restrict", "1"},
	{"kernel/watchdog", "0"}, // on a busy host it would also be wrong
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
