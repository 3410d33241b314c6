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

// notifier tells the service manager that started this process how it is, by
// systemd's protocol (sd_notify(3)); "" when nobody wants to know. What it says
// can't fail: a manager that is gone is none.
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

// reloading says that a reload begins; "READY=1" says that it is over.
func (n notifier) reloading() {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	n.say(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000))
}

// watchdog is how often the manager wants to hear that all is well; 0: never.
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

// alive tells the manager that all is well, as long as the daemon answers at its
// socket. Before the manager's patience is over hung is called, once: a daemon
// that hangs holds what the next one needs.
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
