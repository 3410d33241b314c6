// Command guest is the first process of the suite's machines, and of benchmark machines for
// comparison. It loads the modules, and answers a line with a line on the port "guest". It
// imports only the standard library, so that it builds anywhere.
package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Println("guest: it is for a machine of its own, as its first process")
		os.Exit(2)
	}
	err := serve()
	fmt.Println("guest:", err)
	syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
}

func serve() error {
	for _, m := range []struct{ kind, at string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}} {
		os.MkdirAll(m.at, 0o755)
		if err := syscall.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	modules, err := filepath.Glob("/modules/*.ko") // in the order of their names
	if err != nil {
		return err
	}
	for _, path := range modules {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		if err := loadModule(f); err != nil {
			return fmt.Errorf("load %s: %w", path, err)
		}
		f.Close()
	}
	port, err := open("guest")
	if err != nil {
		return err
	}
	var c counters
	var h holder
	for in := bufio.NewScanner(port); in.Scan(); {
		verb, rest, _ := strings.Cut(in.Text(), " ")
		answer := "what is " + verb + "?"
		switch verb {
		case "ping":
			answer = "pong " + rest
		case "cpus":
			answer = fmt.Sprint(runtime.NumCPU())
		case "random":
			answer = random()
		case "clock":
			b, err := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource")
			answer = fmt.Sprintf("%s %v", strings.TrimSpace(string(b)), err)
		case "net":
			b, _ := os.ReadFile("/sys/class/net/eth0/address")
			answer = "at [" + strings.TrimSpace(string(b)) + "]"
		case "count":
			go c.count()
			answer = "counting"
		case "tell":
			answer = c.tell()
		case "dirty":
			mib, _ := strconv.Atoi(rest)
			answer = h.dirty(mib)
		case "beat":
			go h.beat()
			answer = "beating"
		case "gap":
			answer = h.gap()
		case "off":
			syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
		case "panic":
			err := os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0)
			answer = fmt.Sprint("no panic: ", err)
		}
		if _, err := fmt.Fprintln(port, answer); err != nil {
			return err
		}
	}
	return fmt.Errorf("the port has ended")
}

// open opens a port by name; the port may appear after its driver.
func open(name string) (*os.File, error) {
	for range 500 {
		ports, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, p := range ports {
			if got, _ := os.ReadFile(p); strings.TrimSpace(string(got)) == name {
				return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(p)), os.O_RDWR, 0)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, fmt.Errorf("there is no port %s", name)
}

// random reads from the machine's random number generator.
func random() string {
	f, err := os.Open("/dev/hwrng")
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	var b [16]byte
	if _, err := f.Read(b[:]); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%x", b)
}

// counters counts on every page of 64 MiB. Each page of the first half has a partner in the
// second half with the same number, except between two writes. Memory of more than one instant
// has pages that differ.
type counters struct {
	mu    sync.Mutex
	n     uint64 // rounds so far
	apart int    // pages that differed from their partner
}

const pages = 64 << 20 / 2 / 4096

func (c *counters) count() {
	memory, err := syscall.Mmap(-1, 0, 2*pages*4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		fmt.Println("guest: no memory:", err)
		return
	}
	low, high := memory[:pages*4096], memory[pages*4096:]
	for {
		c.mu.Lock()
		last := byte(c.n)
		c.n++
		now := byte(c.n)
		for i := 0; i < len(low); i += 4096 {
			if low[i] != last || high[i] != last {
				c.apart++
			}
			low[i], high[i] = now, now
		}
		c.mu.Unlock()
		runtime.Gosched()
	}
}

func (c *counters) tell() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("%d %d", c.n, c.apart)
}
