package e2b

import (
	"bytes"
	"context"
	"io"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
)

// maxBuildLine bounds a line of a build's log, in bytes: longer lines are split.
const maxBuildLine = 16 << 10

// buildUser checks the user of a step. A cell has one, with all rights in it; the users of E2B's
// templates are other names of it.
func (f *Front) buildUser(name string) error {
	name, _, _ = strings.Cut(name, ":") // a group
	own := f.cfg.Engine.User()
	switch name {
	case "", "user", "root", own.Name, strconv.Itoa(own.UID):
		return nil
	}
	return cell.Errorf(cell.Unsupported, "e2b.build", "leave the user out", "cannot do a step as user %q: the cell's only user is %s", cell.Clip(name), own.Name)
}

// runStep runs a command of a build. Its output goes to the log as it comes.
func (f *Front) runStep(ctx context.Context, id cell.ID, command string, env []string, dir string, b *build) error {
	e := f.cfg.Engine
	x, err := e.StartExec(ctx, id, api.ExecRequest{Command: []string{"/bin/bash", "-l", "-c", command}, Env: env, Workdir: dir, Attach: true})
	if err != nil {
		return err
	}
	att, err := e.AttachExec(x.ID, true)
	if err != nil {
		return err
	}
	conn, err := att.Open(ctx, backend.Attach{Input: true})
	if err != nil {
		att.Release(true)
		return err
	}
	var last tail
	out, errs := &splitter{say: b.say, tail: &last}, &splitter{say: b.say, tail: &last}
	listen(conn, out, errs)
	conn.Close()
	att.Release(false)
	<-att.Done
	end := endOf(att.Result())
	if end.Exited && end.ExitCode == 0 {
		return nil
	}
	text := strings.Join(last, "\n")
	if len(text) > failureBytes {
		text = "…" + strings.ToValidUTF8(text[len(text)-failureBytes:], "")
	}
	if text != "" {
		text = "\n" + text
	}
	return cell.Errorf(cell.Invalid, "e2b.build", "", "the command %q failed: %s%s%s", cell.Clip(command), end.Status, text, f.whyFailed(ctx, id, command))
}

// listen gives a command no input, and splits what it says until its end.
func listen(conn io.ReadWriter, out, errs *splitter) {
	defer errs.end()
	defer out.end()
	conn.Write(api.AppendFrame(nil, api.Frame{Type: api.FrameStdinEOF})) // it fails where the command has ended: what it said is there
	for buf := []byte(nil); ; {
		fr, err := api.ReadFrame(conn, &buf)
		if err != nil || fr.Type == api.FrameExit {
			return
		}
		to := out
		switch fr.Type {
		case api.FrameStdout:
		case api.FrameStderr:
			to = errs
		default:
			continue
		}
		if _, data, err := fr.OutputData(); err == nil {
			to.write(data)
		}
	}
}

// tail is the end of a command's output.
type tail []string

// splitter splits one output of a command into lines.
type splitter struct {
	say  func(level, message string)
	tail *tail // of all outputs
	rest []byte
}

func (l *splitter) write(data []byte) {
	l.rest = append(l.rest, data...)
	for {
		i := bytes.IndexByte(l.rest, '\n')
		n := i + 1
		if i < 0 && len(l.rest) < maxBuildLine {
			return
		}
		if i < 0 || i > maxBuildLine {
			i, n = maxBuildLine, maxBuildLine
		}
		l.line(l.rest[:i])
		l.rest = append(l.rest[:0], l.rest[n:]...)
	}
}

// end emits the rest without a line end.
func (l *splitter) end() {
	if len(l.rest) > 0 {
		l.line(l.rest)
		l.rest = nil
	}
}

func (l *splitter) line(text []byte) {
	s := strings.TrimRight(strings.ToValidUTF8(string(text), "�"), "\r")
	l.say("info", s)
	if *l.tail = append(*l.tail, s); len(*l.tail) > failureLines {
		*l.tail = (*l.tail)[1:]
	}
}
