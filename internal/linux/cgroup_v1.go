package linux

import "strconv"

// limitMemory1 bounds memory, and memory and swap together, by one number. The
// second may never be below the first, so that their order depends on whether
// the limit grows.
func limitMemory1(dir string, bytes int64) []Unapplied {
	const ram, both = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
	text := strconv.FormatInt(bytes, 10)
	why := setCgroup(dir, ram, text, sameSize(bytes))
	if why != "" { // it may be above the present sum: raise that first
		if setCgroup(dir, both, text, sameSize(bytes)) == "" {
			why = setCgroup(dir, ram, text, sameSize(bytes))
		}
	}
	if why != "" {
		return []Unapplied{{"memory", why}}
	}
	if why := setCgroup(dir, both, text, sameSize(bytes)); why != "" && hostSwaps() {
		return []Unapplied{{"swap", "what does not fit is swapped out: " + why}}
	}
	return nil
}

func limitCPU1(dir string, cpus float64) []Unapplied {
	for _, v := range []struct {
		file  string
		value int64
	}{{"cpu.cfs_period_us", cgroupPeriod}, {"cpu.cfs_quota_us", cpuQuota(cpus)}} {
		text := strconv.FormatInt(v.value, 10)
		if why := setCgroup(dir, v.file, text, func(s string) bool { return s == text }); why != "" {
			return []Unapplied{{"cpu", why}}
		}
	}
	return nil
}
