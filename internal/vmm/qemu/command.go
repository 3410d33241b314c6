package qemu

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/vmm"
)

// Name is the name of the driver.
const Name = "qemu"

// A Driver starts machines with QEMU.
type Driver struct {
	// Search is the program's name or path; "" is qemu-system-x86_64 on PATH.
	Search string
	// Find, if set, returns the program instead of Search. It is called each time.
	Find func() string
}

var _ vmm.Driver = (*Driver)(nil)

// Name implements vmm.Driver.
func (*Driver) Name() string { return Name }

// Limits of a machine. Kernels of distributions need at least that memory. A microvm without a
// third memory region has all memory below 1 TiB.
const (
	minMemory = 64 << 20
	maxMemory = 1 << 40
	maxCPUs   = 64
	maxPorts  = 30 // of one virtio-serial device; its first port is reserved
)

// codeCache is the memory for translated code in each emulated machine, in MiB.
const codeCache = 64

// jiffy is lpj, the number of loops per timer tick in Linux's microsecond delays. It only has
// to be large enough: see words.
const jiffy = 4_000_000

// consoleSet is the console's descriptor set. Set 0 cannot be opened.
const consoleSet = 1

// Modules returns the modules for virtio devices, which no distribution's kernel has built in.
func (*Driver) Modules(s *vmm.Spec) []string {
	names := []string{"virtio_mmio", "virtio_console", "virtio_rng"}
	if s.Net != nil {
		names = append(names, "virtio_net")
	}
	return names
}

// Command implements vmm.Driver.
func (*Driver) Command(p *vmm.Program, s *vmm.Spec) ([]string, []*os.File, error) {
	if err := check(s); err != nil {
		return nil, nil, err
	}
	c := &command{args: []string{p.Path}}
	c.add("-no-user-config", "-nodefaults", "-no-reboot", "-display", "none",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny")
	timer := ""
	if s.Accel == vmm.Emulated {
		timer = ",pit=off" // Linux does not need it, and it would wake QEMU 36 times a second
	}
	c.add("-machine", "microvm"+timer+",acpi=on,usb=off,pcie=off,graphics=off,isa-serial=on,dump-guest-core=off,mem-merge=off,suppress-vmdesc=on,memory-backend=ram")
	c.add("-global", "virtio-mmio.force-legacy=false", "-global", "migration.send-configuration=off")
	switch s.Accel {
	case vmm.KVM:
		c.add("-accel", "kvm", "-cpu", "host")
	case vmm.Emulated:
		c.add("-accel", "tcg,thread=multi,tb-size="+strconv.Itoa(codeCache), "-cpu", cpuModel)
	}
	c.add("-smp", strconv.Itoa(s.CPUs), "-m", fmt.Sprintf("%dM", s.Memory>>20))
	if s.RAM == nil {
		c.add("-object", fmt.Sprintf("memory-backend-memfd,id=ram,size=%d,share=%s", s.Memory, onOff(!s.Private)))
	} else {
		c.add("-object", fmt.Sprintf("memory-backend-file,id=ram,size=%d,mem-path=%s,share=%s", s.Memory, c.path(s.RAM), onOff(!s.Private)))
	}
	if s.Kernel != nil {
		words, err := words(s)
		if err != nil {
			return nil, nil, err
		}
		c.add("-kernel", c.path(s.Kernel), "-initrd", c.path(s.Initramfs), "-append", words)
	}
	c.add("-chardev", fmt.Sprintf("socket,id=monitor,fd=%d", c.file(s.Monitor)), "-mon", "chardev=monitor,mode=control")
	if s.Console != nil { // the device always exists, because it has state
		c.add("-add-fd", fmt.Sprintf("set=%d,fd=%d", consoleSet, c.file(s.Console)), "-chardev", fmt.Sprintf("file,id=console,path=/dev/fdset/%d,append=on", consoleSet))
	} else {
		c.add("-chardev", "null,id=console")
	}
	c.add("-serial", "chardev:console")
	c.add("-object", "rng-builtin,id=random", "-device", "virtio-rng-device,rng=random")
	c.add("-device", fmt.Sprintf("virtio-serial-device,max_ports=%d", len(s.Ports)+1))
	for i, port := range s.Ports {
		c.add("-chardev", fmt.Sprintf("socket,id=port%d,fd=%d", i+1, c.file(port.Socket)),
			"-device", fmt.Sprintf("virtserialport,chardev=port%d,nr=%d,name=%s", i+1, i+1, port.Name))
	}
	if s.Net != nil {
		c.add("-netdev", fmt.Sprintf("dgram,id=net,local.type=fd,local.str=%d", c.file(s.Net)), "-device", netDevice(s.MAC))
	}
	if s.Incoming {
		c.add("-S", "-incoming", "defer")
	}
	return c.args, c.files, nil
}

func netDevice(mac net.HardwareAddr) string {
	if mac == nil {
		return "virtio-net-device,netdev=net"
	}
	return "virtio-net-device,netdev=net,mac=" + mac.String()
}

// check fails for an invalid machine.
func check(s *vmm.Spec) error {
	invalid := func(format string, args ...any) error {
		return cell.Errorf(cell.Invalid, "qemu.Command", "", "cannot start a machine: "+format, args...)
	}
	switch {
	case s.Accel != vmm.KVM && s.Accel != vmm.Emulated:
		return invalid("nothing executes %q", s.Accel)
	case s.CPUs < 1 || s.CPUs > maxCPUs:
		return invalid("%d processors, where 1 to %d are possible", s.CPUs, maxCPUs)
	case s.Memory < minMemory || s.Memory > maxMemory || s.Memory%(1<<20) != 0:
		return invalid("%d bytes of memory, where whole MiB from %d MiB on are possible", s.Memory, minMemory>>20)
	case s.Monitor == nil:
		return invalid("it has no monitor")
	case (s.Kernel == nil) != (s.Initramfs == nil):
		return invalid("a kernel and an initramfs belong together")
	case s.Kernel == nil && !s.Incoming:
		return invalid("it has no kernel")
	case len(s.MAC) != 0 && len(s.MAC) != 6:
		return invalid("%s is no Ethernet address", s.MAC)
	case len(s.Ports) > maxPorts:
		return invalid("%d ports, where %d are possible", len(s.Ports), maxPorts)
	}
	seen := map[string]bool{}
	for _, p := range s.Ports {
		if p.Name == "" || len(p.Name) > 64 || seen[p.Name] || strings.Trim(p.Name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") != "" {
			return invalid("a port can't have the name %q", p.Name)
		}
		if seen[p.Name] = true; p.Socket == nil {
			return invalid("port %s is not connected", p.Name)
		}
	}
	if s.RAM != nil {
		st, err := s.RAM.Stat()
		if err == nil && st.Mode()&os.ModeCharDevice != 0 && !s.Private {
			return invalid("a device that is mapped shared is no memory")
		}
		if err != nil || st.Mode()&os.ModeCharDevice == 0 && st.Size() < s.Memory { // QEMU would enlarge it
			return invalid("its memory's file is too short (%v)", err)
		}
	}
	if s.Console != nil {
		flags, err := unix.FcntlInt(s.Console.Fd(), unix.F_GETFL, 0)
		if err != nil || flags&unix.O_ACCMODE != unix.O_WRONLY { // QEMU accepts no other mode from a set
			return invalid("its console isn't open for writing only (%v)", err)
		}
	}
	return nil
}

// command collects arguments and files.
type command struct {
	args  []string
	files []*os.File
}

func (c *command) add(args ...string) { c.args = append(c.args, args...) }

// file returns the descriptor of a file in the program.
func (c *command) file(f *os.File) int {
	c.files = append(c.files, f)
	return 2 + len(c.files)
}

// path returns a path at which the program can reopen a file.
func (c *command) path(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", c.file(f)) }

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

// cpuModel is the emulated processor: all features that QEMU can emulate, except two.
// Five-level page tables would only make walks longer. With fast byte moves (erms, fsrm) Linux
// and libc would clear and copy pages in a way that takes four times as long.
const cpuModel = "max,la57=off,erms=off,fsrm=off"

// words returns the kernel's command line. The caller's words come last, so that they prevail.
func words(s *vmm.Spec) (string, error) {
	w := []string{
		"panic=-1", "reboot=t", // a panic ends the machine at once
		"pci=off", "no_timer_check", "cryptomgr.notests", // skips what such a machine does not have: a sixth of the boot time
		"deferred_probe_timeout=0", // no driver appears later that a device waits for
	}
	if s.Console != nil {
		w = append(w, "console=ttyS0", "quiet") // each character costs a VM exit
	}
	if s.Accel == vmm.Emulated {
		// The time stamp counter is the host's. Linux would calibrate it against a timer that
		// is late under emulation, and hangs in one boot of five; so the command line has its
		// frequency, and the delay loop count. On a busy host Linux would later distrust the
		// counter by the same timer, and use ticks that get lost; so it must trust it. An
		// emulated processor does not speculate, and mitigations take a quarter of its time.
		f, err := os.Open("/proc/cpuinfo")
		if err != nil {
			return "", fmt.Errorf("cannot determine the frequency of this host's time stamp counter: %w", err)
		}
		defer f.Close()
		khz, err := counterKHz(f)
		if err != nil {
			return "", err
		}
		w = append(w, "mitigations=off", "tsc=reliable", fmt.Sprintf("tsc_early_khz=%d", khz), fmt.Sprintf("lpj=%d", jiffy))
	}
	if s.Append != "" {
		w = append(w, s.Append)
	}
	return strings.Join(w, " "), nil
}

// counterKHz reads the frequency of the time stamp counter from /proc/cpuinfo. It is half of
// bogomips, which Linux derives from the counter; "cpu MHz" is the momentary frequency.
func counterKHz(cpuinfo io.Reader) (int, error) {
	for in := bufio.NewScanner(cpuinfo); in.Scan(); {
		name, value, _ := strings.Cut(in.Text(), ":")
		if strings.TrimSpace(name) != "bogomips" {
			continue
		}
		if mips, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil && mips >= 200 && mips < 1e6 {
			return int(mips * 500), nil
		}
	}
	return 0, cell.Errorf(cell.Unsupported, "qemu.Command", "", "cannot determine the frequency of this host's time stamp counter: /proc/cpuinfo does not say it")
}
