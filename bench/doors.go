package bench

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"path"
	"strings"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
)

// served is an installation with a daemon that answers at an address.
type served struct {
	inst  *installation
	cmd   *exec.Cmd
	url   string
	token string
}

// serve starts `pando serve` and reads what it says first.
func (i *installation) serve(ctx context.Context, flags ...string) (*served, error) {
	c := exec.Command(i.l.exe, append([]string{"serve", "--listen", "127.0.0.1:0", "--json"}, flags...)...)
	c.Env, c.Dir = i.env, i.l.dir
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	s := &served{inst: i, cmd: c}
	var said struct {
		URLs []string `json:"urls"`
	}
	err = json.NewDecoder(out).Decode(&said)
	go io.Copy(io.Discard, out)
	if err == nil && (len(said.URLs) != 1) {
		err = errors.New("pando serve does not say where it answers")
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.url = said.URLs[0]
	t, err := i.client.CreateToken(ctx, api.TokenRequest{Name: "bench", Scope: "admin"}) // may remove cells
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.token = t.Secret
	return s, nil
}

func (s *served) close() error {
	s.cmd.Process.Signal(syscall.SIGTERM)
	err := s.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

func (s *served) doors(ctx context.Context) ([]door, error) {
	agent, err := s.agent(ctx)
	if err != nil {
		return nil, err
	}
	return []door{s.rest(), s.e2b(), agent}, nil
}

// rest is pando's own API, through the Go SDK at a TCP address.
func (s *served) rest() door {
	c := client.New(client.Config{Host: s.url, Token: s.token})
	return door{
		name: "REST", command: "client.Create, RunExec, Eval, WriteFiles, ReadFiles, Branch with PANDO_HOST",
		create: func(ctx context.Context) (string, error) {
			x, err := c.Create(ctx, api.CreateRequest{Backend: s.inst.l.backend})
			return x.ID, err
		},
		remove: func(ctx context.Context, cell string) error { _, err := c.Remove(ctx, cell, false); return err },
		exec: func(ctx context.Context, cell string) error {
			x, err := c.RunExec(ctx, cell, api.ExecRequest{Command: []string{"/bin/true"}})
			if err == nil && (x.ExitCode == nil || *x.ExitCode != 0) {
				err = fmt.Errorf("/bin/true ends with %v", x.ExitCode)
			}
			return err
		},
		eval: func(ctx context.Context, cell, code string) (string, error) {
			x, err := c.Eval(ctx, cell, api.EvalRequest{Code: code}, client.Listener{})
			if err != nil {
				return "", err
			}
			v, err := decode[evaluated](x.Result)
			return fmt.Sprint(v.Value.JSON), err
		},
		write: func(ctx context.Context, cell, name string, b []byte) error {
			var t bytes.Buffer
			w := tar.NewWriter(&t)
			w.WriteHeader(&tar.Header{Name: path.Base(name), Mode: 0o644, Size: int64(len(b))})
			w.Write(b)
			if err := w.Close(); err != nil {
				return err
			}
			return c.WriteFiles(ctx, cell, path.Dir(name), &t)
		},
		read: func(ctx context.Context, cell, name string) ([]byte, error) {
			body, err := c.ReadFiles(ctx, cell, name)
			if err != nil {
				return nil, err
			}
			defer body.Close()
			t := tar.NewReader(body)
			if _, err := t.Next(); err != nil {
				return nil, err
			}
			return io.ReadAll(t)
		},
		fork: func(ctx context.Context, cell string, n int) (ids []string, err error) {
			x, err := c.Branch(ctx, cell, api.BranchRequest{Count: n})
			for _, f := range x.Cells {
				ids = append(ids, f.ID)
			}
			return ids, err
		},
		close: func() error { return nil },
	}
}

// sandbox is one of E2B's, as its SDKs know it.
type sandbox struct {
	ID    string `json:"sandboxID"`
	Token string `json:"envdAccessToken"`
}

// refusal is an answer that is none.
type refusal struct {
	status int
	err    error
}

func (r *refusal) Error() string { return r.err.Error() }

// e2b makes the requests that E2B's SDKs make. It is for one caller at a time.
func (s *served) e2b() door {
	boxes := map[string]sandbox{}
	do := func(ctx context.Context, method, path, kind string, body []byte, port string, box sandbox) ([]byte, error) {
		r, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		if kind != "" {
			r.Header.Set("Content-Type", kind)
		}
		if port == "" {
			r.Header.Set("X-API-KEY", "e2b_"+strings.TrimPrefix(s.token, "pando_"))
		} else {
			r.Header.Set("E2b-Sandbox-Id", box.ID)
			r.Header.Set("E2b-Sandbox-Port", port)
			r.Header.Set("X-Access-Token", box.Token)
			r.Header.Set("Connect-Protocol-Version", "1")
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode >= 300 {
			err = &refusal{resp.StatusCode, fmt.Errorf("%s %s: %s: %.200s", method, path, resp.Status, b)}
		}
		return b, err
	}
	const envd, interpreter = "49983", "49999"
	return door{
		name: "E2B", command: "what Sandbox.create, commands.run, runCode, files.write, files.read, fork of E2B's SDKs send",
		create: func(ctx context.Context) (string, error) {
			b, err := do(ctx, "POST", "/v2/sandboxes", "application/json", []byte(`{"templateID":"base","timeout":600}`), "", sandbox{})
			if err != nil {
				return "", err
			}
			x, err := decode[sandbox](b)
			boxes[x.ID] = x
			return x.ID, err
		},
		remove: func(ctx context.Context, cell string) error {
			_, err := do(ctx, "DELETE", "/sandboxes/"+url.PathEscape(cell), "", nil, "", sandbox{})
			return err
		},
		exec: func(ctx context.Context, cell string) error {
			msg := []byte(`{"process":{"cmd":"/bin/true","args":[]},"stdin":false}`)
			framed := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(msg))), msg...)
			b, err := do(ctx, "POST", "/process.Process/Start", "application/connect+json", framed, envd, boxes[cell])
			if err == nil && (!bytes.Contains(b, []byte(`"end"`)) || !bytes.Contains(b, []byte(`"exited":true`))) {
				err = fmt.Errorf("/bin/true has not ended well: %q", b)
			}
			return err
		},
		eval: func(ctx context.Context, cell, code string) (string, error) {
			q, err := json.Marshal(map[string]string{"code": code})
			if err != nil {
				return "", err
			}
			b, err := do(ctx, "POST", "/execute", "application/json", q, interpreter, boxes[cell])
			if err != nil {
				return "", err
			}
			for line := range bytes.Lines(b) {
				x, err := decode[struct {
					Type string `json:"type"`
					Text string `json:"text"`
				}](line)
				if err == nil && x.Type == "result" {
					return x.Text, nil
				}
			}
			return "", fmt.Errorf("there is no result: %.200s", b)
		},
		write: func(ctx context.Context, cell, name string, b []byte) error {
			_, err := do(ctx, "POST", "/files?path="+url.QueryEscape(name), "application/octet-stream", b, envd, boxes[cell])
			return err
		},
		read: func(ctx context.Context, cell, name string) ([]byte, error) {
			return do(ctx, "GET", "/files?path="+url.QueryEscape(name), "", nil, envd, boxes[cell])
		},
		fork: func(ctx context.Context, cell string, n int) (ids []string, err error) {
			b, err := do(ctx, "POST", "/sandboxes/"+url.PathEscape(cell)+"/fork", "application/json", fmt.Appendf(nil, `{"count":%d}`, n), "", sandbox{})
			if err != nil {
				return nil, err
			}
			list, err := decode[[]struct {
				Sandbox sandbox `json:"sandbox"`
			}](b)
			for _, x := range list {
				if x.Sandbox.ID != "" {
					ids = append(ids, x.Sandbox.ID)
				}
			}
			return ids, err
		},
		close: func() error { return nil },
	}
}

// agentReads is how much of a file an answer over MCP can have.
const agentReads = 256 << 10

// agent is a client of `pando mcp`.
func (s *served) agent(ctx context.Context) (door, error) {
	cmd := exec.Command(s.inst.l.exe, "mcp")
	cmd.Env, cmd.Dir = s.inst.env, s.inst.l.dir
	session, err := mcp.NewClient(&mcp.Implementation{Name: "pando-bench", Version: "1"}, nil).Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		return door{}, err
	}
	empty, err := s.inst.l.fresh("empty")
	if err != nil {
		return door{}, err
	}
	ask := func(ctx context.Context, tool string, args map[string]any, out any) error {
		r, err := session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
		if err != nil {
			return err
		}
		b, err := json.Marshal(r.StructuredContent)
		if err != nil || r.IsError {
			said, _ := json.Marshal(r.Content)
			return errors.Join(err, fmt.Errorf("%s: %.300s", tool, said))
		}
		return json.Unmarshal(b, out)
	}
	return door{
		name: "MCP", command: "pando mcp, its tools create, exec, eval, write_file, read_file, branch", whole: agentReads,
		create: func(ctx context.Context) (string, error) {
			var x struct{ ID string }
			err := ask(ctx, "create", map[string]any{"from": empty}, &x)
			return x.ID, err
		},
		remove: func(ctx context.Context, cell string) error {
			var x any
			return ask(ctx, "kill", map[string]any{"cell": cell}, &x)
		},
		exec: func(ctx context.Context, cell string) error {
			var x struct {
				Exit *int `json:"exit_code"`
			}
			err := ask(ctx, "exec", map[string]any{"cell": cell, "command": []string{"/bin/true"}}, &x)
			if err == nil && (x.Exit == nil || *x.Exit != 0) {
				err = fmt.Errorf("/bin/true ends with %v", x.Exit)
			}
			return err
		},
		eval: func(ctx context.Context, cell, code string) (string, error) {
			var x struct{ Value json.RawMessage }
			err := ask(ctx, "eval", map[string]any{"cell": cell, "code": code}, &x)
			return string(x.Value), err
		},
		write: func(ctx context.Context, cell, name string, b []byte) error {
			var x any
			return ask(ctx, "write_file", map[string]any{"cell": cell, "path": name, "base64": base64.StdEncoding.EncodeToString(b)}, &x)
		},
		read: func(ctx context.Context, cell, name string) ([]byte, error) {
			var x struct{ Text string }
			err := ask(ctx, "read_file", map[string]any{"cell": cell, "path": name, "limit": agentReads}, &x)
			return []byte(x.Text), err
		},
		fork: func(ctx context.Context, cell string, n int) (ids []string, err error) {
			var x struct{ Cells []struct{ ID string } }
			err = ask(ctx, "branch", map[string]any{"cell": cell, "count": n}, &x)
			for _, c := range x.Cells {
				ids = append(ids, c.ID)
			}
			return ids, err
		},
		close: session.Close,
	}, nil
}
