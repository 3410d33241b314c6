// Package kvm says whether virtual machines run in hardware here. A device alone proves
// nothing: on some hosts /dev/kvm has only paravirtual guests behind it, and a machine with
// a system of its own aborts or hangs. Three things are therefore checked, each only if
// the one before is there: the device, the processor's own flags, and a machine (Run), in a
// process of its own with a deadline. None is enough alone: such a device also runs the few
// instructions of that machine, by emulating them.
package kvm

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Device is the kernel's door to virtual machines.
const Device = "/dev/kvm"

// State is what was found, in words that stay.
type State string

// The states.
const (
	Absent   State = "absent"       // there is no device, or nothing behind it
	NoAccess State = "no access"    // this user may not open it
	Hollow   State = "not hardware" // there is a device, and no machine runs in hardware
	Works    State = "works"        // a machine was made, and computed what it should
	Refused  State = "switched off" // not probed, because KVM is not to be used
)

// Verdict is what Look found.
type Verdict struct {
	State State
	Why   string // a sentence without its full stop
	// CPU is the word for virtualisation among the processor's features: "vmx",
	// "svm", or "" if there is none.
	CPU string
}

// Means returns the consequence of the verdict for virtual machines, as a sentence.
func (v Verdict) Means() string {
	if v.State == Works {
		return "microVM cells run at the processor's speed"
	}
	return "microVM cells are emulated (slower, labelled `emulated`), and all their features work"
}

// Capable reports whether the processor may run virtual machines, as far as it says.
func (v Verdict) Capable() bool { return v.CPU != "" || silent }

// Host is what Look asks. This returns that of the machine it runs on.
type Host struct {
	Open    func() error // opens the device for reading and writing, and closes it again
	CPUInfo string       // /proc/cpuinfo
	Run     func() error // runs a machine, and never takes much longer than it says
}

// This is the machine that this process runs on. A machine that it runs has limit
// to come to its end.
func This(limit time.Duration) Host {
	text, _ := os.ReadFile("/proc/cpuinfo") // without it the processor says nothing
	return Host{
		Open: func() error {
			fd, err := unix.Open(Device, unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		},
		CPUInfo: string(text),
		Run:     func() error { return Run(limit) },
	}
}

// Look says whether virtual machines run in hardware on a host. It tries none
// where the processor says that it can't: what such a device does is not known.
func Look(h Host) Verdict {
	v := Verdict{CPU: feature(h.CPUInfo)}
	also := ""
	if !v.Capable() {
		also = ", and the processor has neither vmx nor svm"
	}
	switch err := h.Open(); {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		v.State, v.Why = Absent, "there is no "+Device+also
		return v
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		v.State, v.Why = Absent, Device+" has no driver behind it"+also
		return v
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		v.State, v.Why = NoAccess, "you may not open "+Device+also
		return v
	case err != nil:
		v.State, v.Why = Hollow, Device+" can't be opened: "+err.Error()
		return v
	}
	if !v.Capable() {
		v.State, v.Why = Hollow, "there is "+Device+", but the processor has neither vmx nor svm: a virtual machine would not boot"
		return v
	}
	if err := h.Run(); err != nil {
		v.State, v.Why = Hollow, "there is "+Device+", but no virtual machine runs: "+err.Error()
		return v
	}
	v.State, v.Why = Works, ran
	return v
}

// Processor names what a machine depends on that was given all of the processor's
// features: a processor with the same name may have others switched off.
func Processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	return processor(string(text))
}

func processor(cpuinfo string) string {
	said := map[string]string{}
	for l := range strings.Lines(cpuinfo) {
		k, v, _ := strings.Cut(l, ":")
		if k = strings.TrimSpace(k); said[k] == "" {
			said[k] = strings.TrimSpace(v)
		}
	}
	sum := sha256.Sum256([]byte(said["flags"] + said["Features"]))
	return said["model name"] + " with features " + hex.EncodeToString(sum[:8])
}

// feature finds the processor's word for virtualisation.
func feature(cpuinfo string) string {
	for l := range strings.Lines(cpuinfo) {
		k, v, _ := strings.Cut(l, ":")
		if strings.TrimSpace(k) != "flags" {
			continue
		}
		for f := range strings.FieldsSeq(v) {
			if f == "vmx" || f == "svm" {
				return f
			}
		}
	}
	return ""
}
