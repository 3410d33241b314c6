package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
)

type execIn struct {
	Cell    string   `json:"cell" jsonschema:"name or id of the cell"`
	Command []string `json:"command,omitempty" jsonschema:"the program and its arguments; no shell is involved"`
	Shell   string   `json:"shell,omitempty" jsonschema:"instead of command: a line for sh -c"`
	Stdin   string   `json:"stdin,omitempty" jsonschema:"what the command reads from its standard input"`
	Env     []string `json:"env,omitempty" jsonschema:"variables, as NAME=value"`
	Workdir string   `json:"workdir,omitempty" jsonschema:"where to run, absolute or below the workspace; default the workspace"`
	Timeout string   `json:"timeout,omitempty" jsonschema:"such as 90s; the command is ended then. Default: none"`
	Limit   int      `json:"limit,omitempty" jsonschema:"bytes of each output stream in the answer, at most 262144; default 24576"`
}

// ended is the end of a command, and its output.
type ended struct {
	Cell     string   `json:"cell"`
	ExitCode *int     `json:"exit_code"`
	Signal   string   `json:"signal,omitempty"`
	Cause    string   `json:"cause,omitempty"`
	WallMS   float64  `json:"wall_ms"`
	Stdout   shown    `json:"stdout"`
	Stderr   shown    `json:"stderr"`
	Notes    []string `json:"notes,omitempty"`
}

func command(words []string, shell string) ([]string, error) {
	switch {
	case len(words) > 0 && shell != "":
		return nil, invalid("leave one of them out", "cannot run both command and shell")
	case len(words) > 0:
		return words, nil
	case shell != "":
		return []string{"sh", "-c", shell}, nil
	}
	return nil, invalid(`give command, such as ["ls", "-l"], or shell, such as "ls | wc -l"`, "cannot run: there is no command")
}

func (s *Server) exec(ctx context.Context, c *call, in execIn) (answer, error) {
	if err := needed("cell", in.Cell); err != nil {
		return answer{}, err
	}
	cmd, err := command(in.Command, in.Shell)
	if err != nil {
		return answer{}, err
	}
	out, errs, done, err := s.collect(ctx, c)
	if err != nil {
		return answer{}, err
	}
	defer done()
	c.tell("starting " + path.Base(cmd[0]))
	x, err := s.cfg.Client.StartExec(ctx, in.Cell, api.ExecRequest{Command: cmd, Env: in.Env, Workdir: in.Workdir, Timeout: in.Timeout, Attach: true})
	if err != nil {
		return answer{}, err
	}
	at, err := s.cfg.Client.AttachExec(ctx, x.ID, client.AttachOptions{Input: true})
	if err != nil {
		return answer{}, err
	}
	defer at.Close()
	res, err := carry[api.Exec](ctx, c, at, in.Stdin, out, errs)
	if err != nil {
		return answer{}, err
	}
	limit := limitOf(in.Limit)
	e := ended{Cell: in.Cell, ExitCode: res.ExitCode, Signal: res.Signal, Cause: res.Cause, WallMS: res.WallMS, Notes: append(x.Notes, res.Notes...),
		Stdout: s.show(out, limit, ""), Stderr: s.show(errs, limit, "")}
	return answer{text: lines(e.Stdout.Text, e.Stderr.Text, howEnded(e.ExitCode, e.Signal, e.Cause), lines(e.Notes...)), data: e}, nil
}

// howEnded describes it in a line; "" for success.
func howEnded(code *int, signal, cause string) string {
	switch {
	case cause != "":
		return "ended: " + cause
	case signal != "":
		return "ended by " + signal
	case code == nil:
		return "it did not start"
	case *code != 0:
		return fmt.Sprintf("exit code %d", *code)
	}
	return ""
}

// chunk is the size of an input frame, in bytes.
const chunk = 256 << 10

// carry passes input to a command, collects its output, and returns its result. When ctx ends,
// the caller closes the attachment, which ends the command.
func carry[T any](ctx context.Context, c *call, at *client.Attachment, stdin string, out, errs *collector) (res T, err error) {
	fed, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for s := stdin; s != ""; {
			n := min(chunk, len(s))
			if at.Send(fed, api.Frame{Type: api.FrameStdin, Payload: []byte(s[:n])}) != nil {
				return
			}
			s = s[n:]
		}
		at.Send(fed, api.Frame{Type: api.FrameStdinEOF})
	}()
	for {
		f, err := at.Recv(ctx)
		if err != nil {
			return res, err
		}
		switch f.Type {
		case api.FrameStdout, api.FrameStderr:
			_, b, err := f.OutputData()
			if err != nil {
				return res, err
			}
			to := out
			if f.Type == api.FrameStderr {
				to = errs
			}
			to.add(b)
			c.tell(lastLine(b))
		case api.FrameProgress:
			var p api.Progress
			if json.Unmarshal(f.Payload, &p) == nil {
				c.progress(p)
			}
		case api.FrameResult, api.FrameError:
			return client.DecodeResult[T](f)
		}
	}
}

// quoted formats a command for a shell.
func quoted(words []string) string { return strings.Join(words, " ") }
