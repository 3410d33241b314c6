package guest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/testenv"
)

// copies holds a guest in gVisor, saves it, lets it go on, and returns n copies, none of
// which is adopted. /dev of each is in its memory.
func (b *bed) copies(t *testing.T, n int) (list []*bed) {
	t.Helper()
	if err := b.Hold(b.ctx, false); err != nil {
		t.Fatal(err)
	}
	b.gv.capture(t)
	if err := b.goOn(); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		conn, theirs := sockets(t)
		gone := b.gv.restore(t, fmt.Sprintf("copy-%d", i), conn, theirs)
		c, err := Connect(b.ctx, conn, testToken)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, &bed{Client: c, ctx: b.ctx, gone: gone})
	}
	return list
}

// says runs a script, which must succeed, and returns what it writes.
func (b *bed) says(t *testing.T, id, script string) string {
	t.Helper()
	exit, out, errs := b.run(t, sh(id, script), "")
	if exit.Code != 0 {
		t.Fatalf("%s: %+v %s%s", script, exit, out, errs)
	}
	return strings.TrimSpace(out)
}

// begun starts a script that goes on, and waits until it has made the file that is named
// after it.
func (b *bed) begun(t *testing.T, id, script string) *running {
	t.Helper()
	r, err := b.start(t, sh(id, script), nil)
	if err != nil {
		t.Fatal(err)
	}
	b.says(t, "until-"+id, "until test -e /dev/"+id+"; do sleep 0.01; done")
	return r
}

// Nothing of a copy in gVisor has run before it is adopted: not one instruction of a
// process that never waits, in two copies of one image. All of it goes on then, and no
// process has got a signal for it.
func TestX48NothingOfACopyRunsBeforeItIsAdopted(t *testing.T) {
	t.Run("gvisor", func(t *testing.T) {
		b := inGvisor(t)
		b.begun(t, "ticks", "i=0; while :; do i=$((i+1)); echo $i >/dev/new; mv /dev/new /dev/ticks; done")
		b.begun(t, "threads", `exec /usr/bin/python3 -c '
import mmap, struct, threading
f = open("/dev/new-counts", "w+b")
f.write(bytes(32))
f.flush()
m = mmap.mmap(f.fileno(), 32)
def count(n):
    i = 0
    while True:
        i += 1
        struct.pack_into("q", m, 8 * n, i)
for n in range(4): threading.Thread(target=count, args=(n,)).start()
import os
os.rename("/dev/new-counts", "/dev/counts")
open("/dev/threads", "w")'`)
		b.begun(t, "traps", "trap 'echo cont >>/dev/signals' CONT; : >/dev/traps; while :; do sleep 0.01; done")
		const seen = "cat /dev/ticks; od -An -v -t d8 -w8 /dev/counts"
		var first string
		for i, c := range b.copies(t, 2) {
			was := c.says(t, "look", seen)
			if again := c.says(t, "again", "sleep 0.1; "+seen); again != was {
				t.Errorf("copy %d: it is at %q, and then at %q", i, was, again)
			}
			if i == 0 {
				first = was
			} else if was != first {
				t.Errorf("a copy begins at %q, another of the same image at %q", first, was)
			}
			if len(strings.Fields(was)) != 5 {
				t.Fatalf("what was counted is %q", was)
			}
			if _, err := c.Adopt(c.ctx, Adoption{}); err != nil {
				t.Fatal(err)
			}
			for n, at := range strings.Fields(was) {
				c.says(t, fmt.Sprint("on-", n), fmt.Sprintf("until set -- $(%s) && shift %d && test $1 -gt %s; do sleep 0.01; done", seen, n, at))
			}
			if out := c.says(t, "signals", "cat /dev/signals 2>/dev/null || true"); out != "" {
				t.Errorf("copy %d: a process that went on got SIGCONT: %q", i, out)
			}
		}
		b.says(t, "source", "i=$(cat /dev/ticks); until test $(cat /dev/ticks) -gt $i; do sleep 0.01; done; ! test -e /dev/signals")
	})
}

// What stops itself while its cell is held and saved stays stopped in a copy and in the
// source, whenever it does, and goes on when it is told to. Each has a process group of its
// own: gVisor sends SIGHUP and SIGCONT to all of an orphaned group in which one is stopped,
// when another of it ends.
func TestX48WhatStopsItselfMeanwhileStaysStopped(t *testing.T) {
	t.Run("gvisor", func(t *testing.T) {
		b := inGvisor(t)
		const many = 40
		r := b.begun(t, "many", fmt.Sprintf("i=0; while test $i -lt %d; do i=$((i+1)); setsid sh -c 'echo $$ >>/dev/pids; kill -STOP $$; echo awake >>/dev/awake' & : >/dev/many; sleep 0.01; done; wait", many))
		defer r.in.Close()
		c := b.copies(t, 1)[0]
		if _, err := c.Adopt(c.ctx, Adoption{}); err != nil {
			t.Fatal(err)
		}
		for _, x := range []*bed{c, b} {
			x.says(t, "all", fmt.Sprintf("until test $(wc -l </dev/pids) = %d; do sleep 0.01; done", many))
			x.says(t, "rest", "for p in $(cat /dev/pids); do until grep -q 'State:.*T' /proc/$p/status; do test -e /proc/$p && ! test -e /dev/awake || exit 1; sleep 0.01; done; done")
			if out := x.says(t, "awake", "cat /dev/awake 2>/dev/null || true"); out != "" {
				t.Errorf("these went on: %q", out)
			}
			x.says(t, "cont", fmt.Sprintf("kill -CONT $(cat /dev/pids); until test $(wc -l </dev/awake) = %d; do sleep 0.01; done", many))
		}
	})
}

// A copy's zombies are zombies, and SIGKILL ends a process that is frozen, and what ends
// with it, before anything else of the copy goes on.
func TestX48KilledProcessesOfACopyEnd(t *testing.T) {
	t.Run("gvisor", func(t *testing.T) {
		b := inGvisor(t)
		b.begun(t, "zombie", `exec /usr/bin/python3 -c '
import os, time
pid = os.fork()
if pid == 0: os._exit(3)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
open("/dev/new", "w").write(str(pid))
os.rename("/dev/new", "/dev/zombie")
time.sleep(1000)'`)
		parent := b.begun(t, "threads", `exec /usr/bin/python3 -c '
import ctypes, os, signal, threading, time
if os.fork() == 0:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    open("/dev/heir", "w").write(str(os.getpid()))
    time.sleep(1000)
for n in range(4): threading.Thread(target=time.sleep, args=(1000,)).start()
while not os.path.exists("/dev/heir"): time.sleep(0.01)
open("/dev/threads", "w")'`)
		b.says(t, "is", "grep -q 'State:.*Z' /proc/$(cat /dev/zombie)/status")
		c := b.copies(t, 1)[0]
		c.says(t, "still", "grep -q 'State:.*Z' /proc/$(cat /dev/zombie)/status")
		c.says(t, "kill", fmt.Sprintf("kill -9 %d; until grep -q 'State:.*Z' /proc/%[1]d/status; do sleep 0.01; done; while test -e /proc/$(cat /dev/heir); do sleep 0.01; done", parent.PID()))
		if _, err := c.Adopt(c.ctx, Adoption{}); err != nil {
			t.Fatal(err)
		}
		c.says(t, "now", "grep -q 'State:.*Z' /proc/$(cat /dev/zombie)/status")
		testenv.Eventually(t, func() bool {
			known, err := c.Processes(c.ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range known {
				if k.ID == "threads" {
					return k.Ended
				}
			}
			return false
		}, "that the process that was killed has ended")
		if exit, _ := c.reattach(t, "threads").Wait(func() {}); exit.Signal != "SIGKILL" {
			t.Errorf("the killed process ended with %+v", exit)
		}
	})
}

// A copy ends if its keeper ends before the adoption, with all that is frozen in it.
func TestX48ACopyThatNobodyAdoptsEnds(t *testing.T) {
	t.Run("gvisor", func(t *testing.T) {
		b := inGvisor(t)
		b.begun(t, "ticks", "i=0; while :; do i=$((i+1)); echo $i >/dev/new; mv /dev/new /dev/ticks; done")
		b.begun(t, "waits", "trap '' HUP TERM; setsid sleep 1000 & : >/dev/waits; sleep 1000")
		c := b.copies(t, 1)[0]
		c.Close()
		testenv.Receive(t, c.gone, "the end of its sandbox")
	})
}
