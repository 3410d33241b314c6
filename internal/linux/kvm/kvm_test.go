package kvm

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// cpu is /proc/cpuinfo of a processor with these features.
func cpu(features string) string {
	return "processor\t: 0\nmodel name\t: with vmx in its name\nflags\t\t: fpu " + features + "\nvmx flags\t: ept\n"
}

// Each kind of host gets its verdict, and nothing runs on a host without the processor flag.
func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name     string
		open     error
		features string
		run      error
		want     State
		why      string
		tried    bool
	}{
		{"no device", unix.ENOENT, "vmx", nil, Absent, "there is no /dev/kvm", false},
		{"no driver", unix.ENODEV, "svm", nil, Absent, "no driver", false},
		{"not mine", unix.EACCES, "vmx", nil, NoAccess, "may not open", false},
		{"not for this container", unix.EPERM, "vmx", nil, NoAccess, "may not open", false},
		{"something else", unix.EBUSY, "vmx", nil, Hollow, "busy", false},
		{"paravirtual guests only", nil, "hypervisor svmx", nil, Hollow, "neither vmx nor svm", false},
		{"it hangs", nil, "vmx", errors.New("one did not come to its end"), Hollow, "did not come to its end", true},
		{"Intel", nil, "vmx ept", nil, Works, "was made", true},
		{"AMD", nil, "svm", nil, Works, "was made", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if silent && c.name == "paravirtual guests only" {
				t.Skip("needs an x86 processor")
			}
			tried := false
			v := Look(Host{Open: func() error { return c.open }, CPUInfo: cpu(c.features), Run: func() error { tried = true; return c.run }})
			if v.State != c.want || !strings.Contains(v.Why, c.why) || tried != c.tried {
				t.Errorf("%+v, tried %v", v, tried)
			}
			if emulated := strings.Contains(v.Means(), "emulated"); emulated != (c.want != Works) {
				t.Errorf("means %q", v.Means())
			}
		})
	}
}

// On this host, whichever it is, the verdict agrees with what the processor says of
// itself; and a machine that is run nevertheless comes to an end, one way or the
// other, with no process left.
func TestThisHost(t *testing.T) {
	h := This(20 * time.Second)
	v := Look(h)
	t.Logf("%s: %s", v.State, v.Why)
	openable := unix.Access(Device, unix.R_OK|unix.W_OK) == nil
	flagged := false
	for l := range strings.Lines(h.CPUInfo) {
		if strings.HasPrefix(l, "flags") {
			flagged = flagged || strings.Contains(" "+strings.TrimSpace(l)+" ", " vmx ") || strings.Contains(" "+strings.TrimSpace(l)+" ", " svm ")
		}
	}
	switch {
	case v.State == Works && !(openable && (flagged || silent)):
		t.Errorf("works, and the device can be opened: %v, the processor has virtualisation: %v", openable, flagged)
	case v.State == NoAccess && openable, v.State == Hollow && !openable:
		t.Errorf("%s, and the device can be opened: %v", v.State, openable)
	case v.State == Hollow && v.CPU == "" && flagged:
		t.Errorf("the processor's virtualisation was not seen")
	}
	if !openable {
		return
	}
	before := time.Now()
	err := Run(2 * time.Second)
	t.Logf("a machine: %v, after %v", err, time.Since(before))
	if err != nil && v.State == Works {
		t.Errorf("works, and then a machine does not: %v", err)
	}
	if left := children(t); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

// A child that hangs is killed and reaped, and that is what is said of it.
func TestHangingMachineIsEnded(t *testing.T) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	s := &linux.Script{Gated: true}
	s.Call("follow its parent's death", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, int(unix.SIGKILL), 0, 0, 0)
	s.Gate()
	buf := make([]byte, 1)
	s.Call("read what never comes", unix.SYS_READ, p[0], buf, 1)
	s.Exit()
	freed := make(chan struct{})
	err := run(s, 100*time.Millisecond, func() { close(freed) })
	if err == nil || !strings.Contains(err.Error(), "did not come to its end within 100ms, and was killed") {
		t.Errorf("it says: %v", err)
	}
	select {
	case <-freed:
	case <-time.After(time.Minute):
		t.Fatal("what it used is not free")
	}
	if left := children(t); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

// What goes wrong on the way is said by the name of the step.
func TestFailedStepIsNamed(t *testing.T) {
	s := &linux.Script{Gated: true}
	s.Gate()
	s.Call("make one", unix.SYS_IOCTL, -1, createVM, 0)
	s.Exit()
	if err := run(s, 20*time.Second, func() {}); err == nil || err.Error() != "cannot make one: bad file descriptor" {
		t.Errorf("it says: %v", err)
	}
}

// children are those of this process, ended or not.
func children(t *testing.T) (list []string) {
	t.Helper()
	all, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		b, err := os.ReadFile("/proc/" + e.Name() + "/status")
		if err == nil && strings.Contains(string(b), "\nPPid:\t"+strconv.Itoa(os.Getpid())+"\n") {
			list = append(list, e.Name())
		}
	}
	return list
}
