package sshd

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/run"
)

// Commands of a session, by the cell's own shell: bash, if there is one. A shell at a terminal is interactive, and no login
// shell, which would forget the cell's PATH.
const (
	interactive = "command -v bash >/dev/null && exec bash -i || exec sh -i"
	fromInput   = "command -v bash >/dev/null && exec bash || exec sh"
	oneCommand  = `command -v bash >/dev/null && exec bash -c "$0" || exec sh -c "$0"`
)

// Limits of what a client may say before its command starts.
const (
	mostVars = 128
	longVar  = 32 << 10 // bytes, of a name with its value
)

// failed is the exit status of a command that was not started, as of OpenSSH's client.
const failed = 255

// session is one channel with a command, a shell or a subsystem.
type session struct {
	s   *serving
	ch  ssh.Channel
	req api.ExecRequest

	input   chan []byte // frames for the command, in order
	signals chan string // likewise
	id      chan string // of the command, once it has started
}

// Limits of what waits for a command that does not read.
const (
	queued  = 16          // frames, and signals
	perRead = 32 << 10    // bytes of what the client sends, in one
	endWait = time.Second // in which a command that lost its client is told of that
)

// size is what pty-req and window-change say of a terminal.
type size struct{ Cols, Rows, Width, Height uint32 }

// session serves a channel for one command.
func (s *serving) session(ctx context.Context, in ssh.NewChannel) {
	ch, requests, err := in.Accept()
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	x := &session{s: s, ch: ch, input: make(chan []byte, queued), signals: make(chan string, queued), id: make(chan string, 1)}
	var work sync.WaitGroup
	work.Go(func() { x.pass(ctx) })
	begun := false
	for r := range requests { // ends when the client closes the channel, or is gone
		ok := false
		switch {
		case r.Type == "window-change":
			x.resize(r.Payload)
		case r.Type == "signal":
			var sig struct{ Name string }
			if ssh.Unmarshal(r.Payload, &sig) == nil {
				select { // this loop goes on: it serves the whole connection
				case x.signals <- "SIG" + sig.Name:
				default: // more than a command takes
				}
			}
		case begun: // one for each channel (RFC 4254, 6.5)
		case r.Type == "pty-req":
			ok = x.terminal(r.Payload)
		case r.Type == "env":
			ok = x.variable(r.Payload)
		case r.Type == "shell", r.Type == "exec", r.Type == "subsystem":
			var do func(context.Context)
			if do = x.command(r); do != nil {
				ok, begun = true, true
				r.Reply(true, nil)
				work.Go(func() {
					defer ch.Close()
					do(ctx)
				})
				continue
			}
		}
		if r.WantReply {
			r.Reply(ok, nil)
		}
	}
	cancel()
	work.Wait()
	ch.Close()
}

func (x *session) terminal(payload []byte) bool {
	var pty struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     string
	}
	if ssh.Unmarshal(payload, &pty) != nil {
		return false
	}
	x.req.TTY, x.req.Rows, x.req.Cols = true, short(pty.Rows), short(pty.Cols)
	if pty.Term != "" && len(pty.Term) < 256 && !strings.ContainsRune(pty.Term, 0) {
		x.req.Env = append(x.req.Env, "TERM="+pty.Term)
	}
	return true
}

func short(n uint32) uint16 { return uint16(min(n, 1<<16-1)) }

func (x *session) variable(payload []byte) bool {
	var v struct{ Name, Value string }
	if ssh.Unmarshal(payload, &v) != nil || v.Name == "" || strings.ContainsAny(v.Name, "=\x00") || strings.ContainsRune(v.Value, 0) ||
		len(v.Name)+len(v.Value) > longVar || len(x.req.Env) >= mostVars {
		return false
	}
	x.req.Env = append(x.req.Env, v.Name+"="+v.Value)
	return true
}

// command is what a request asks to start; nil: nothing that there is.
func (x *session) command(r *ssh.Request) func(context.Context) {
	var text struct{ Text string }
	if r.Type != "shell" && ssh.Unmarshal(r.Payload, &text) != nil {
		return nil
	}
	switch r.Type {
	case "shell":
		x.req.Command = []string{"sh", "-c", fromInput}
		if x.req.TTY {
			x.req.Command[2] = interactive
		}
	case "exec":
		x.req.Command = []string{"sh", "-c", oneCommand, text.Text}
	default:
		if text.Text == "sftp" {
			return x.sftp
		}
		return nil
	}
	return x.exec
}

func (x *session) sftp(ctx context.Context) {
	conn, err := x.s.cell.SFTP(ctx)
	if err != nil {
		x.fail(err)
		return
	}
	defer conn.Close()
	if err := join(ctx, x.ch, conn); err != nil {
		x.exit(failed)
		return
	}
	x.exit(0)
}

// fail says why a command was not started.
func (x *session) fail(err error) {
	text := "pando: " + err.Error() + "\r\n"
	if hint := cell.HintOf(err); hint != "" {
		text += "hint: " + hint + "\r\n"
	}
	io.WriteString(x.ch.Stderr(), text)
	x.exit(failed)
}

func (x *session) exit(code int) {
	x.ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(code)}))
}

// exec runs a command to its end. It is interrupted when the client is gone.
func (x *session) exec(ctx context.Context) {
	x.req.Attach = true
	started, err := x.s.cell.StartExec(ctx, x.req)
	if err != nil {
		x.fail(err)
		return
	}
	att, err := x.s.cell.AttachExec(started.ID, true)
	if err != nil {
		x.fail(err)
		return
	}
	conn, err := att.Open(context.WithoutCancel(ctx), backend.Attach{Input: true})
	if err != nil {
		att.Release(true)
		x.fail(err)
		return
	}
	defer conn.Close()
	x.id <- started.ID
	gone := sync.OnceFunc(func() { // the client is
		if x.req.TTY { // which went with it
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWait)
			x.signal(ctx, "SIGHUP")
			cancel()
		}
		att.Release(true)
		conn.Close()
	})
	defer context.AfterFunc(ctx, gone)()
	go x.feed(ctx)
	go func() {
		for {
			select {
			case frame := <-x.input:
				if _, err := conn.Write(frame); err != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	if err = x.show(conn); err != nil {
		gone()
		x.fail(err)
		return
	}
	att.Release(false) // all of it was read
	x.ended(ctx, att)
}

// pass sends the command the signals that the client asks for, one after the other.
func (x *session) pass(ctx context.Context) {
	for {
		select {
		case name := <-x.signals:
			x.signal(ctx, name)
		case <-ctx.Done():
			return
		}
	}
}

// signal sends the command a signal, once it has started.
func (x *session) signal(ctx context.Context, name string) {
	select {
	case id := <-x.id:
		x.id <- id
		if err := x.s.cell.SignalExec(ctx, id, name); err != nil {
			x.s.log.Info("cannot send a signal", "exec", id, "signal", name, "error", err)
		}
	case <-ctx.Done():
	}
}

// feed passes what the client sends to the command.
func (x *session) feed(ctx context.Context) {
	buf := make([]byte, perRead)
	put := func(f api.Frame) bool {
		select {
		case x.input <- api.AppendFrame(nil, f):
			return true
		case <-ctx.Done():
			return false
		}
	}
	for {
		n, err := x.ch.Read(buf)
		if n > 0 && !put(api.Frame{Type: api.FrameStdin, Payload: buf[:n]}) {
			return
		}
		if err != nil {
			if errors.Is(err, io.EOF) && !x.req.TTY {
				put(api.Frame{Type: api.FrameStdinEOF})
			}
			return
		}
	}
}

// resize tells the command of another size of its terminal, if it reads what it is told.
func (x *session) resize(payload []byte) {
	var to size
	if ssh.Unmarshal(payload, &to) != nil || !x.req.TTY {
		return
	}
	text, err := json.Marshal(api.Resize{Rows: short(to.Rows), Cols: short(to.Cols)})
	if err != nil {
		return
	}
	select {
	case x.input <- api.AppendFrame(nil, api.Frame{Type: api.FrameResize, Payload: text}):
	default:
	}
}

// show passes the output of the command to the client, until its end.
func (x *session) show(conn io.Reader) error {
	var buf []byte
	for {
		f, err := api.ReadFrame(conn, &buf)
		if err != nil {
			return err
		}
		to := io.Writer(x.ch)
		switch f.Type {
		case api.FrameExit:
			return nil
		case api.FrameStderr:
			to = x.ch.Stderr()
		case api.FrameStdout:
		default:
			continue
		}
		_, data, err := f.OutputData()
		if err == nil {
			_, err = to.Write(data)
		}
		if err != nil {
			return err
		}
	}
}

// ended tells the client how the command ended.
func (x *session) ended(ctx context.Context, att *run.Attachment) {
	select {
	case <-att.Done:
	case <-ctx.Done():
		return
	}
	result, err := att.Result()
	e, ok := result.(api.Exec)
	switch {
	case err != nil:
		x.fail(err)
	case !ok || e.ExitCode == nil:
		x.fail(errors.New("its end is not known"))
	case e.Signal != "":
		x.ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Name       string
			Dumped     bool
			Text, Lang string
		}{strings.TrimPrefix(e.Signal, "SIG"), false, e.Cause, ""}))
	default:
		x.exit(*e.ExitCode)
	}
}
