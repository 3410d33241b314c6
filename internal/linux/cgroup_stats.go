package linux

import (
	"strconv"
	"strings"
)

// NotMeasured is the value of a figure this host does not give.
const NotMeasured = -1

// CgroupStats are the kernel's figures of a cgroup and all below it. Each is
// NotMeasured where the host does not count it.
type CgroupStats struct {
	Memory        int64 // bytes now, page cache included
	MemoryPeak    int64 // bytes
	Swap          int64 // bytes now
	OOMKills      int64 // processes ended at the memory limit
	CPUUsec       int64 // microseconds of CPU time
	Throttled     int64 // periods in which the CPU limit bit
	ThrottledUsec int64 // microseconds waited for the CPU limit
	PIDs          int64 // processes and threads now
	PIDsPeak      int64
	PIDsRefused   int64 // forks that failed at the limit
	ReadBytes     int64 // from disks
	WrittenBytes  int64 // to disks
}

// Stats reads all figures.
func (c *Cgroup) Stats() CgroupStats {
	s := c.Used()
	if d, ok := c.with("memory"); ok && d.tree.v2 {
		s.Swap = figure(d.path, "memory.swap.current")
	} else if ok {
		s.Swap = keyed(d.path, "memory.stat", "total_swap")
	}
	if d, ok := c.with("pids"); ok {
		s.PIDs, s.PIDsRefused = figure(d.path, "pids.current"), keyed(d.path, "pids.events", "max")
	}
	if d, ok := c.with("cpu"); ok {
		s.Throttled = keyed(d.path, "cpu.stat", "nr_throttled")
		if s.ThrottledUsec = keyed(d.path, "cpu.stat", "throttled_usec"); !d.tree.v2 {
			s.ThrottledUsec = per1000(keyed(d.path, "cpu.stat", "throttled_time"))
		}
	}
	return s
}

// Used reads what a process is charged with: memory, processor time, processes
// at the peak, bytes to disks. The rest is NotMeasured: it is read twice for
// every command, and adding up memory.stat takes longer than all of it.
func (c *Cgroup) Used() CgroupStats {
	s := CgroupStats{NotMeasured, NotMeasured, NotMeasured, NotMeasured, NotMeasured, NotMeasured, NotMeasured, NotMeasured, NotMeasured, NotMeasured, NotMeasured, NotMeasured}
	if d, ok := c.with("memory"); ok && d.tree.v2 {
		s.Memory, s.MemoryPeak = figure(d.path, "memory.current"), figure(d.path, "memory.peak")
	} else if ok {
		s.Memory, s.MemoryPeak = figure(d.path, "memory.usage_in_bytes"), figure(d.path, "memory.max_usage_in_bytes")
	}
	s.OOMKills = c.OOMKills()
	if d, ok := c.with("pids"); ok {
		s.PIDsPeak = figure(d.path, "pids.peak")
	}
	if d, ok := c.v2(); ok { // counted without a controller
		s.CPUUsec = keyed(d.path, "cpu.stat", "usage_usec")
	} else if d, ok := c.with("cpuacct"); ok {
		s.CPUUsec = per1000(figure(d.path, "cpuacct.usage"))
	}
	if d, ok := c.with("io"); ok {
		if text, err := readCgroup(d.path, "io.stat"); err == nil {
			s.ReadBytes, s.WrittenBytes = sumIO(text)
		}
	}
	return s
}

// OOMKills is how many processes were ended for the limit on memory.
func (c *Cgroup) OOMKills() int64 {
	d, ok := c.with("memory")
	switch {
	case !ok:
		return NotMeasured
	case d.tree.v2:
		return keyed(d.path, "memory.events", "oom_kill")
	}
	return keyed(d.path, "memory.oom_control", "oom_kill")
}

func per1000(n int64) int64 {
	if n == NotMeasured {
		return n
	}
	return n / 1000
}

// figure reads a file that is one number.
func figure(dir, file string) int64 {
	text, err := readCgroup(dir, file)
	if err != nil {
		return NotMeasured
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return NotMeasured
	}
	return n
}

// keyed reads one number from a file of lines "key number".
func keyed(dir, file, key string) int64 {
	text, err := readCgroup(dir, file)
	if err != nil {
		return NotMeasured
	}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			if n, err := strconv.ParseInt(v, 10, 64); err == nil {
				return n
			}
		}
	}
	return NotMeasured
}

// sumIO adds up io.stat: a line for each device, "8:0 rbytes=1 wbytes=2 …".
func sumIO(text string) (read, written int64) {
	for _, word := range strings.Fields(text) {
		key, value, _ := strings.Cut(word, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case err != nil:
		case key == "rbytes":
			read += n
		case key == "wbytes":
			written += n
		}
	}
	return read, written
}
