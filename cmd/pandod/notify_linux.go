package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// notifier reports to the service manager that started this process, by systemd's protocol
// (sd_notify(3)); "" for no manager. Errors are ignored: a manager that has ended needs no
// report.
type notifier string

func newNotifier() notifier { return notifier(os.Getenv("NOTIFY_SOCKET")) }

// say sends lines such as "READY=1".
func (n notifier) say(lines string) {
	if n == "" {
		return
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: string(n), Net: "unixgram"})
	if err != nil {
		return
	}
	defer c.Close()
	c.SetWriteDeadline(time.Now().Add(time.Second))
	c.Write([]byte(lines))
}

// reloading reports the beginning of a reload; "READY=1" reports its end.
func (n notifier) reloading() {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	n.say(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000))
}

// watchdog is the interval of reports that the manager requires; 0: none.
func watchdog() time.Duration {
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || usec <= 0 {
		return 0
	}
	return time.Duration(usec) * time.Microsecond
}

// alive reports to the manager as long as the daemon answers at its socket. Before the manager's
// time limit it calls hung, once: a hanging daemon holds the lock that the next one needs.
func (n notifier) alive(ctx context.Context, socket string, every time.Duration, hung func()) {
	if n == "" || every == 0 {
		return
	}
	c := &http.Client{Timeout: every / 4, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dialSocket(ctx, socket) }}}
	tick := time.NewTicker(every / 4)
	defer tick.Stop()
	for last := time.Now(); ; {
		if resp, err := c.Get("http://pando/healthz"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				n.say("WATCHDOG=1")
				last = time.Now()
			}
		}
		if ctx.Err() == nil && time.Since(last) > every*2/3 {
			hung()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
