package vmmtest

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/vmm"
)

// testBoots starts machines one after the other; none may hang. With E2E_SOAK=1 it starts
// twenty.
func testBoots(k *bench) {
	n := 2
	if os.Getenv("E2E_SOAK") != "" {
		n = 20
	}
	for i := range n {
		one := k.suite.bench(k.TB)
		s := one.spec(one.ram())
		s.CPUs = 1 + i%2
		var mine io.Closer
		if i == 0 {
			f, c := one.pair(unix.SOCK_DGRAM)
			defer f.Close()
			s.Net, mine = f, c
			s.MAC = net.HardwareAddr{2, 1, 2, 3, 4, 5}
		}
		b := one.start(s)
		b.ask("ping "+strconv.Itoa(i), "pong "+strconv.Itoa(i))
		b.ask("cpus", strconv.Itoa(s.CPUs))
		b.ask("net", "at ["+s.MAC.String()+"]")
		if a, c := b.say("random"), b.say("random"); a == c || len(a) != 32 || len(c) != 32 {
			b.Errorf("the machine's randomness is %q and %q", a, c)
		}
		b.clock()
		b.state(vmm.Running)
		fmt.Fprintln(b.port, "off")
		b.gone()
		if got, want := b.m.Why(), "the guest shut down"; got != want {
			b.Errorf("it says that %q, want %q", got, want)
		}
		if _, err := b.m.Status(b.ctx); cell.KindOf(err) != cell.Unavailable {
			b.Errorf("the status of a machine that has ended is %v, want %s", err, cell.Unavailable)
		}
		if mine != nil {
			mine.Close()
		}
	}
}

// clock fails unless the guest uses the time stamp counter as its clock, perhaps a second after
// its start. Other clocks lose ticks on a busy host.
func (b *box) clock() {
	b.Helper()
	for end := time.Now().Add(patience / 4); ; time.Sleep(20 * time.Millisecond) {
		c := b.say("clock")
		if c == "tsc <nil>" || c == "kvm-clock <nil>" {
			return
		}
		if time.Now().After(end) {
			b.Errorf("the guest's clock is %s", c)
			return
		}
	}
}

// testStandsStill stops a machine: its memory no longer changes, and it continues unaffected.
func testStandsStill(k *bench) {
	ram := k.ram()
	b := k.parent(ram)
	if err := b.m.Save(b.ctx, io.Discard); cell.KindOf(err) != cell.Conflict {
		b.Errorf("saving a running machine is %v, want %s", err, cell.Conflict)
	}
	before := k.digest(ram)
	b.counts()
	if k.digest(ram) == before {
		b.Error("a machine that counts changes nothing in its memory")
	}
	b.must(b.m.Stop(b.ctx))
	b.must(b.m.Stop(b.ctx)) // no effect
	b.state(vmm.Stopped)
	still := k.digest(ram)
	var once, again bytes.Buffer
	b.must(b.m.Save(b.ctx, &once))
	time.Sleep(50 * time.Millisecond)
	b.must(b.m.Save(b.ctx, &again))
	if once.Len() == 0 || once.Len() > 1<<20 {
		b.Errorf("its devices are %d bytes", once.Len())
	}
	if k.digest(ram) != still {
		b.Error("the memory of a stopped machine has changed")
	}
	if err := b.m.Save(b.ctx, full{}); !errors.Is(err, errFull) {
		b.Errorf("saving to what takes nothing is %v, want %v", err, errFull)
	}
	if err := b.m.Load(b.ctx, &once); cell.KindOf(err) != cell.Conflict {
		b.Errorf("loading a machine that was stopped is %v, want %s", err, cell.Conflict)
	}
	b.must(b.m.Continue(b.ctx))
	b.state(vmm.Running)
	b.counts()
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// testCopies makes two copies of a machine, and a copy of one of those. All have memory of one
// instant, and continue independently.
func testCopies(k *bench) {
	ram := k.ram()
	parent := k.parent(ram)
	devices := parent.saved()
	before := k.digest(ram)

	a, b := k.child(ram), k.child(ram)
	a.state(vmm.Waiting)
	if err := a.m.Continue(a.ctx); cell.KindOf(err) != cell.Conflict {
		a.Errorf("a machine that has not been loaded goes on: %v, want %s", err, cell.Conflict)
	}
	a.load(devices)
	n := a.counts()
	for range 3 {
		n = a.counts()
	}
	b.load(devices)
	if early := b.counts(); early >= n {
		b.Errorf("a copy begins at %d, where another had come to", early)
	}
	if k.digest(ram) != before {
		k.Error("copies have changed the memory that they were made of")
	}

	// A copy of a copy has the copy's memory: the file and its own pages.
	devices = a.saved()
	c := k.child(a.took(ram))
	c.load(devices)
	a.must(a.m.Continue(a.ctx))
	if later := c.counts(); later < n {
		c.Errorf("a copy of a copy begins at %d, after %d", later, n)
	}
	a.kill()
	a.gone()
	b.counts()
	c.counts()
	b.ask("ping b", "pong b")
	c.ask("ping c", "pong c")
}

// testMisfits loads data that is no device state.
func testMisfits(k *bench) {
	b := k.child(k.ram())
	if err := b.m.Load(b.ctx, strings.NewReader("QEVMwhatever this is")); cell.KindOf(err) != cell.Corrupt {
		b.Errorf("loading nonsense is %v, want %s", err, cell.Corrupt)
	}
	b = k.child(k.ram())
	if err := b.m.Load(b.ctx, io.MultiReader(strings.NewReader("QEVM"), broken{})); !errors.Is(err, errFull) {
		b.Errorf("loading what can't be read is %v, want %v", err, errFull)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errFull }

// testPanics: the console contains the text of a panic, and the machine ends.
func testPanics(k *bench) {
	b := k.start(k.spec(nil)) // with the program's own memory
	b.ask("ping 1", "pong 1")
	fmt.Fprintln(b.port, "panic")
	b.gone()
	if b.m.Why() == "" {
		b.Error("Why is empty after its end")
	}
	text, err := os.ReadFile(b.console)
	b.must(err)
	if !bytes.Contains(text, []byte("Kernel panic")) {
		b.Errorf("the console has no panic: %q", text)
	}
}

// testQuits ends a machine.
func testQuits(k *bench) {
	b := k.child(k.ram())
	b.must(b.m.Quit(b.ctx))
	b.gone()
	b.must(b.m.Quit(b.ctx)) // no effect
}

// testKilled: Done is closed when a machine is killed.
func testKilled(k *bench) {
	b := k.child(k.ram())
	select {
	case <-b.m.Done():
		b.Fatal("a machine that runs has ended")
	default:
	}
	b.kill()
	b.gone()
	if why := b.m.Why(); why != "" {
		b.Errorf("a machine that was killed says why: %q", why)
	}
	if err := b.m.Stop(b.ctx); cell.KindOf(err) != cell.Unavailable {
		b.Errorf("stopping a machine that was killed is %v, want %s", err, cell.Unavailable)
	}
}

// testInvalid requests invalid machines.
func testInvalid(k *bench) {
	monitor, other := k.pair(unix.SOCK_STREAM)
	defer monitor.Close()
	defer other.Close()
	short := k.ram()
	k.must(short.Truncate(memory / 2))
	zero, err := os.Open("/dev/zero")
	k.must(err)
	defer zero.Close()
	for name, change := range map[string]func(*vmm.Spec){
		"a shared device":    func(s *vmm.Spec) { s.RAM = zero },
		"no processors":      func(s *vmm.Spec) { s.CPUs = 0 },
		"no memory":          func(s *vmm.Spec) { s.Memory = 0 },
		"half a page":        func(s *vmm.Spec) { s.Memory -= 2048 },
		"a short memory":     func(s *vmm.Spec) { s.RAM = short },
		"no monitor":         func(s *vmm.Spec) { s.Monitor = nil },
		"no kernel":          func(s *vmm.Spec) { s.Incoming = false },
		"an unknown accel":   func(s *vmm.Spec) { s.Accel = "magic" },
		"a port's bad name":  func(s *vmm.Spec) { s.Ports = []vmm.Port{{Name: "a,b", Socket: monitor}} },
		"a port twice":       func(s *vmm.Spec) { s.Ports = []vmm.Port{{Name: "a", Socket: monitor}, {Name: "a", Socket: monitor}} },
		"a port with no end": func(s *vmm.Spec) { s.Ports = []vmm.Port{{Name: "a"}} },
		"a console to read":  func(s *vmm.Spec) { s.Console = short },
		"an initramfs alone": func(s *vmm.Spec) { s.Initramfs = short },
	} {
		s := k.spec(k.ram())
		s.Monitor, s.Incoming = monitor, true
		if _, _, err := k.driver.Command(k.program, s); err != nil {
			k.Fatalf("a good machine is refused: %v", err)
		}
		change(s)
		if _, _, err := k.driver.Command(k.program, s); cell.KindOf(err) != cell.Invalid {
			k.Errorf("a machine with %s is %v, want %s", name, err, cell.Invalid)
		}
	}
}

// digest returns the digest of a memory's content.
func (k *bench) digest(ram *os.File) string {
	k.Helper()
	h := sha256.New()
	_, err := io.Copy(h, io.NewSectionReader(ram, 0, memory))
	k.must(err)
	return string(h.Sum(nil))
}

// took returns the memory of a stopped machine that has mapped a file privately, read from its
// process.
func (b *box) took(ram *os.File) *os.File {
	b.Helper()
	var st unix.Stat_t
	b.must(unix.Fstat(int(ram.Fd()), &st))
	proc := fmt.Sprintf("/proc/%d", b.cmd.Process.Pid)
	maps, err := os.ReadFile(proc + "/maps")
	b.must(err)
	var start uint64
	for in := bufio.NewScanner(bytes.NewReader(maps)); in.Scan(); {
		f := strings.Fields(in.Text()) // 7f…-7f… rw-p 00000000 00:01 INODE /memfd:ram (deleted)
		if len(f) > 4 && f[4] == strconv.FormatUint(st.Ino, 10) && f[2] == "00000000" && strings.HasPrefix(f[5], "/memfd:") {
			_, err = fmt.Sscanf(f[0], "%x-", &start)
			b.must(err)
		}
	}
	if start == 0 {
		b.Fatal("the machine does not have its memory mapped")
	}
	mem, err := os.Open(proc + "/mem")
	b.must(err)
	defer mem.Close()
	to := b.ram()
	_, err = io.Copy(to, io.NewSectionReader(mem, int64(start), memory))
	b.must(err)
	return to
}
