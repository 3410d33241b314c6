package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// userHZ is the unit of times in /proc/PID/stat on every Linux we run on.
const userHZ = 100

// Processes lists the processes that a /proc shows, by number. It is all of them, or an
// error: a list that could not be read to its end is none.
func Processes(proc string) ([]cell.ProcessInfo, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	boot := bootTime()
	began := time.Now()
	var list []cell.ProcessInfo
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		switch p, err := readProcess(filepath.Join(proc, e.Name()), pid, boot, began); {
		case err == nil:
			list = append(list, p)
		case !IsGone(err):
			return nil, err
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].PID < list[j].PID })
	return list, nil
}

// ReadProcess describes one process. IsGone tells the error of one that has ended.
func ReadProcess(pid int) (cell.ProcessInfo, error) {
	return readProcess("/proc/"+strconv.Itoa(pid), pid, bootTime(), time.Now())
}

// IsGone reports whether a file below /proc/PID could not be read because the process
// has ended, which is all that such an error may mean: a shortage of descriptors or of
// memory says nothing about the process.
func IsGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// A process that executes a program has no arguments for a moment: the kernel has changed its name already,
// and puts them into its memory next. One without arguments is looked at again after execTick, until execWait is
// over for a whole list: processes can take their arguments away.
const (
	execWait = 100 * time.Millisecond // on a busy machine it waits for its turn in the middle
	execTick = 200 * time.Microsecond
)

// readProcess describes a process, and not in the middle of an exec that is over soon. began is when the list
// that it is for was begun.
func readProcess(dir string, pid int, boot, began time.Time) (p cell.ProcessInfo, err error) {
	for {
		var executes bool
		if p, executes, err = readProcessNow(dir, pid, boot); err != nil || !executes || time.Since(began) >= execWait {
			return p, err
		}
		time.Sleep(execTick)
	}
}

// readProcessNow parses proc_pid_stat(5). executes says that the process has no arguments, and will have some:
// it is not ending, and no thread of the kernel's. A process has the state of its first thread, or of another
// one when the first alone has ended. One that runs nothing any more and has let go of its memory is dead (X), even
// before the kernel says so.
func readProcessNow(dir string, pid int, boot time.Time) (p cell.ProcessInfo, executes bool, err error) {
	command, f, err := readStat(dir)
	if err != nil {
		return p, false, err
	}
	if isOver(f) {
		if thread, t := livingThread(dir, pid); t != nil {
			dir, f[0], f[6], f[20], f[21] = thread, t[0], t[6], t[20], t[21]
		} else if f[0] != "Z" {
			f[0] = "X"
		}
	}
	num := func(i int) int64 { n, _ := strconv.ParseInt(f[i], 10, 64); return n }
	p = cell.ProcessInfo{
		PID: pid, State: f[0], PPID: int(num(1)),
		CPU:     (num(11) + num(12)) * 1000 / userHZ,
		Started: boot.Add(time.Duration(num(19)) * time.Second / userHZ),
		RSS:     num(21) * int64(os.Getpagesize()),
		Command: command,
	}
	cmd, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err == nil && len(cmd) > 0 {
		p.Command = strings.TrimSpace(strings.ReplaceAll(string(cmd), "\x00", " "))
	}
	return p, err == nil && len(cmd) == 0 && p.State != "Z" && p.State != "X" && num(6)&(exiting|kernelThread) == 0, nil
}

const exiting, kernelThread = 0x4, 0x200000 // PF_EXITING, PF_KTHREAD: flags in stat

// isOver reports whether the thread with these fields of stat runs nothing any more and has let go of its memory.
func isOver(f []string) bool {
	flags, _ := strconv.ParseInt(f[6], 10, 64)
	return f[0] == "Z" || f[0] == "X" || flags&exiting != 0 && f[20] == "0" // vsize
}

// readStat returns the name in the file stat of a process or of a thread, and the fields after it.
func readStat(dir string) (name string, fields []string, err error) {
	file := filepath.Join(dir, "stat")
	stat, err := os.ReadFile(file)
	if err != nil {
		return "", nil, err
	}
	open, end := strings.IndexByte(string(stat), '('), strings.LastIndexByte(string(stat), ')')
	if end > open && open >= 0 {
		name, fields = string(stat[open+1:end]), strings.Fields(string(stat[end+1:]))
	}
	if len(fields) < 22 {
		return "", nil, fmt.Errorf("cannot read %s: %q is not the state of a process", file, stat)
	}
	return name, fields, nil
}

// livingThread returns the directory in /proc and the fields of stat of a thread of a process that is not over,
// besides the first; none if there is none.
func livingThread(dir string, pid int) (string, []string) {
	threads, _ := os.ReadDir(filepath.Join(dir, "task"))
	for _, t := range threads {
		if t.Name() == strconv.Itoa(pid) {
			continue
		}
		thread := filepath.Join(dir, "task", t.Name())
		if _, f, err := readStat(thread); err == nil && !isOver(f) {
			return thread, f
		}
	}
	return "", nil
}

// MemoryOf is what a process that a /proc shows has in memory, in bytes, as the
// named lines of proc_pid_smaps_rollup(5) say: "Pss" counts of pages that it
// shares with others its share. Where that can't be seen it is all that it has.
func MemoryOf(proc string, p cell.ProcessInfo, lines ...string) (n int64) {
	b, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(p.PID), "smaps_rollup"))
	if err != nil {
		return p.RSS
	}
	for _, l := range lines {
		kib, _, _ := strings.Cut(StatusField(b, l), " ")
		v, err := strconv.ParseInt(kib, 10, 64)
		if err != nil {
			return p.RSS
		}
		n += v << 10
	}
	return n
}

// dying reports whether a process is on its way out: it has been sent SIGKILL,
// is exiting, or is gone but for its parent, as proc_pid_stat(5) and
// proc_pid_status(5) tell. On a busy machine that way takes its time.
func dying(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return true
	}
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(f) < 7 || f[0] == "Z" || f[0] == "X" {
		return true
	}
	if flags, err := strconv.ParseUint(f[6], 10, 64); err == nil && flags&exiting != 0 {
		return true
	}
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		return true
	}
	for l := range strings.Lines(string(status)) {
		name, mask, _ := strings.Cut(l, ":")
		if name != "SigPnd" && name != "ShdPnd" {
			continue
		}
		if m, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64); err == nil && m&(1<<(unix.SIGKILL-1)) != 0 {
			return true
		}
	}
	return false
}

func bootTime() time.Time {
	b, _ := os.ReadFile("/proc/stat")
	for _, l := range strings.Split(string(b), "\n") {
		if s, ok := strings.CutPrefix(l, "btime "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
			return time.Unix(n, 0)
		}
	}
	return time.Time{}
}

// ExitOf puts a wait status into words: a process that a signal ended has the
// code 128 + signal.
func ExitOf(ws syscall.WaitStatus) cell.Exit {
	if ws.Signaled() {
		return cell.Exit{Code: 128 + int(ws.Signal()), Signal: unix.SignalName(ws.Signal())}
	}
	return cell.Exit{Code: ws.ExitStatus()}
}

// InnerPID returns the PID of a process in its own namespace, or 0 if the process has ended.
func InnerPID(pid int) int {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	f := strings.Fields(StatusField(b, "NSpid"))
	if len(f) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(f[len(f)-1])
	return n
}

// StatusField returns one field of a /proc/PID/status.
func StatusField(status []byte, name string) string {
	for l := range strings.Lines(string(status)) {
		if k, v, ok := strings.Cut(l, ":"); ok && k == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
