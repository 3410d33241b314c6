package linux

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

// Unstopped lists the processes that a /proc shows with a thread that has not stopped, by the states of
// proc_pid_stat(5). waits are those of which each such thread waits and can't be interrupted (D): it
// stops when that is over, as a process does that waits for its vfork(2)ed child.
func Unstopped(proc string) (runs, waits []int, err error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		states, err := threadStates(filepath.Join(proc, e.Name(), "task"))
		switch {
		case IsGone(err):
		case err != nil:
			return nil, nil, err
		case bytes.ContainsAny(states, "RSIWP"):
			runs = append(runs, pid)
		case bytes.ContainsAny(states, "D"):
			waits = append(waits, pid)
		}
	}
	return runs, waits, nil
}

// threadStates is the state of each thread of a process, a letter each.
func threadStates(dir string) (states []byte, err error) {
	threads, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, t := range threads {
		stat, err := os.ReadFile(filepath.Join(dir, t.Name(), "stat"))
		if IsGone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if i := bytes.LastIndexByte(stat, ')'); i >= 0 && i+2 < len(stat) {
			states = append(states, stat[i+2])
		}
	}
	return states, nil
}
