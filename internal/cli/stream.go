package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/terminal"
)

// terminal reports whether standard input and output are a terminal, and its size.
func (a *app) terminal() (is bool, rows, cols uint16) {
	out, ok := fileOf(a.stdout)
	if !ok || !term.IsTerminal(int(a.stdin.Fd())) || !term.IsTerminal(int(out.Fd())) {
		return false, 0, 0
	}
	w, h, err := term.GetSize(int(out.Fd()))
	if err != nil {
		return true, 24, 80
	}
	return true, uint16(h), uint16(w)
}

// stream carries a command's input and output until its end, and returns the result frame. With
// quiet, output is discarded (stdout is for JSON).
func (a *app) stream(l *link, tty, quiet bool) (api.Frame, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer l.close()
	if tty {
		old, err := term.MakeRaw(int(a.stdin.Fd()))
		if err == nil {
			a.cursor.setRaw(true)
			defer func() {
				term.Restore(int(a.stdin.Fd()), old)
				a.cursor.setRaw(false)
			}()
		}
	}
	sigs := make(chan os.Signal, 16)
	signal.Notify(sigs, append(forwarded, resized...)...)
	defer signal.Stop(sigs)
	go a.forward(ctx, l, sigs, tty)
	out, errs := a.followed(a.stdout), a.followed(a.stderr)
	if quiet {
		out = errs
	}
	if tty {
		left := &terminal.Modes{}
		out = io.MultiWriter(left, out)
		l.redrawn = func() { io.WriteString(out, left.TakeBack()) }
		defer func() { io.WriteString(a.stdout, left.TakeBack()) }()
	}
	if l.through != nil {
		out = l.through(out)
	}
	if d := l.drops; d != nil {
		h := &heldBack{a: a, to: out}
		out = h
		d.ask, d.shown, d.send = h.ask, h.shown, func(b []byte) { l.input(ctx, b) }
		d.done = func() {
			if h.goOn() {
				a.redraw(ctx, l)
			}
		}
		defer h.goOn()
	}
	if l.feeds || tty {
		go a.feed(ctx, l, tty)
	}
	f, err := a.carry(ctx, l, out, errs)
	if err != nil && l.userDetached() {
		err = errDetached
	}
	return f, err
}

// carry writes the output of a command until its end, and returns the result frame.
func (a *app) carry(ctx context.Context, l *link, out, errs io.Writer) (api.Frame, error) {
	p := &progress{a: a}
	defer p.clear()
	if l.starts {
		p.show(api.Progress{Step: stepStarting})
	}
	for {
		f, err := l.recv(ctx, func(line string) {
			p.clear()
			a.say("pando: %s", line)
		})
		if err != nil {
			return f, err
		}
		switch f.Type {
		case api.FrameStdout, api.FrameStderr:
			p.clear()
			b, err := l.output(f)
			if err != nil {
				return f, err
			}
			w := out
			if f.Type == api.FrameStderr {
				w = errs
			}
			if _, err := w.Write(b); err != nil && errors.Is(err, syscall.EPIPE) {
				return f, &exitError{api.ExitInterrupted}
			}
		case api.FrameScreen:
			p.clear()
			b, err := l.screen(f)
			if err != nil {
				return f, err
			}
			out.Write(b)
		case api.FrameGap:
			var g api.Gap
			if json.Unmarshal(f.Payload, &g) == nil {
				p.clear()
				a.say("pando: %d bytes of %s are no longer kept", g.Bytes, g.Stream)
			}
		case api.FrameTaken:
			var t api.Taken
			if json.Unmarshal(f.Payload, &t) == nil {
				l.taken(ctx, t.Bytes)
			}
		case api.FrameProgress:
			var s api.Progress
			if json.Unmarshal(f.Payload, &s) == nil {
				p.show(s)
			}
		case api.FrameResult, api.FrameError:
			return f, nil
		}
	}
}

// forward passes signals on. Without a terminal of its own the command gets Ctrl-C as SIGINT;
// the third Ctrl-C ends this client.
func (a *app) forward(ctx context.Context, l *link, sigs <-chan os.Signal, tty bool) {
	interrupts := 0
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-sigs:
			if slices.Contains(resized, s) {
				if is, rows, cols := a.terminal(); tty && is {
					b, _ := json.Marshal(api.Resize{Rows: rows, Cols: cols})
					l.tell(ctx, api.Frame{Type: api.FrameResize, Payload: b})
				}
				continue
			}
			if l.readOnly || s == syscall.SIGHUP && l.stays {
				l.userDetaches()
				return
			}
			if s == os.Interrupt {
				if interrupts++; interrupts == 3 {
					l.close()
					return
				}
			}
			l.tell(ctx, api.Frame{Type: api.FrameSignal, Payload: []byte(signalName(s))})
		}
	}
}

// feed passes standard input on.
func (a *app) feed(ctx context.Context, l *link, tty bool) {
	buf := make([]byte, 32<<10)
	keys := &detacher{keys: l.detach}
	if l.drops != nil {
		defer l.drops.end() // output goes on
	}
	for {
		n, err := a.stdin.Read(buf)
		pass, leaves := keys.typed(buf[:n])
		const ctrlC = 3
		if leaves || l.readOnly && bytes.IndexByte(pass, ctrlC) >= 0 {
			l.userDetaches()
			return
		}
		switch {
		case len(pass) == 0 || !l.feeds:
		case l.drops != nil:
			l.drops.typed(pass)
		case !l.input(ctx, pass):
			return
		}
		if err != nil {
			if !tty && l.feeds {
				l.inputEnds(ctx)
			}
			return
		}
	}
}

// progress draws the progress of long work on a terminal, after a short delay.
type progress struct {
	a     *app
	mu    sync.Mutex // guards the fields below
	since time.Time
	drawn bool
	later string // the line that is drawn after the delay
	timer *time.Timer
	note  string
}

const noticeable = 300 * time.Millisecond

// stepStarting is shown until the daemon, which may have to start itself, tells of a step.
const stepStarting = "starting"

func (p *progress) show(s api.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() {
		p.since = time.Now()
		if !p.a.began.IsZero() { // what came before was waited for, too: the start of the daemon, of which nothing is told
			p.since = p.a.began
		}
	}
	if s.Step == api.StepDenied {
		if !p.a.told[s.Note] {
			p.a.told[s.Note] = true
			p.wipe()
			p.a.say("pando: denied: %s", printable(s.Note))
		}
		return
	}
	if (s.Step == "waiting" || s.Step == api.StepAsking) && s.Note != p.note {
		p.note = s.Note
		p.wipe()
		p.a.say("pando: %s", s.Note)
	}
	p.later = ""
	if s.Step == "running" {
		p.wipe()
	}
	if !p.a.isTTY || s.Step == "running" || s.Step == "waiting" || s.Step == api.StepAsking {
		return
	}
	line := s.Step
	if s.Unit == "bytes" && s.Total > 0 {
		line += fmt.Sprintf(" %s of %s", size(s.Done), size(s.Total))
	} else if s.Done > 0 {
		line += fmt.Sprintf(" %d %s", s.Done, s.Unit)
	}
	if s.Note != "" {
		line += " " + s.Note
	}
	if line = printable(line); len(line) > p.a.width-2 {
		line = line[:p.a.width-2]
	}
	p.later = line
	if wait := noticeable - time.Since(p.since); wait > 0 {
		if p.timer == nil {
			p.timer = time.AfterFunc(wait, func() {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.draw()
			})
		}
		return
	}
	p.draw()
}

// draw shows the waiting line. The caller holds mu.
func (p *progress) draw() {
	if p.later != "" {
		fmt.Fprintf(p.a.stderr, "%s\r\x1b[K%s", p.a.cursor.end(), p.later)
		p.later, p.drawn = "", true
	}
}

func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.later = ""
	p.wipe()
}

// wipe erases the drawn line. The caller holds mu.
func (p *progress) wipe() {
	if p.drawn {
		io.WriteString(p.a.stderr, "\r\x1b[K")
		p.drawn = false
	}
}
