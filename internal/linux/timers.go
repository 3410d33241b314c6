package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync/atomic"
	"time"
)

// CoarseTimers lets the timers of this process's threads be late by up to slack, and
// those of threads that these start. The Go runtime's monitor looks what there is to do
// every 20 µs for a while, whenever something was: where a timer's end is dear, as in a
// machine, a short answer costs more of that than of work. What a Script
// executes has the slack that this says. It takes CAP_SYS_NICE.
// See PR_SET_TIMERSLACK(2const).
func CoarseTimers(slack time.Duration) error {
	coarse.Store(true)
	text := strconv.FormatInt(slack.Nanoseconds(), 10)
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range threads {
		// Not listed, but there: the entry of a thread as if it were a process.
		if err := os.WriteFile(fmt.Sprintf("/proc/%s/timerslack_ns", t.Name()), []byte(text), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// coarse says that CoarseTimers was called.
var coarse atomic.Bool

// defaultSlack is the kernel's own.
const defaultSlack = 50 * time.Microsecond
