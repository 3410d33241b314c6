package e2e

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
)

// TestAgentsReplay has recorded sessions of agents, as they come from npm, executed again without the model's server: each asks
// for the same, is answered from the recording, and leaves the same. What differs in the bodies of its requests is named.
func TestAgentsReplay(t *testing.T) {
	if !ownNetwork(t) {
		return
	}
	for _, c := range []struct {
		name, variable string
		model          func(h *host) http.Handler
		says           string // the streams that are the same each time
	}{
		{"claude", "E2E_CLAUDE", func(h *host) http.Handler { return &model{turns: greeting(h.src), key: "none"} }, "stdout stderr"},
		{"codex", "E2E_CODEX", func(*host) http.Handler {
			return openAI("none", "exec_command", map[string]any{"cmd": friendlier})
		}, "stdout"}, // the other has the id of its session
	} {
		t.Run(c.name, func(t *testing.T) {
			prog := agentProgram(t, c.variable, c.name)
			world(t)
			h := newHost(t)
			for i, kv := range h.env {
				if path, ok := strings.CutPrefix(kv, "PATH="); ok {
					h.env[i] = "PATH=" + filepath.Dir(prog) + ":" + path
				}
			}
			h.write("greet.sh", "echo Hello\n")
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			h.must(err)
			s := &http.Server{Handler: c.model(h)}
			go s.Serve(ln)
			defer s.Close()
			h.exits(0, c.name, "--record", "--cell", "mine", "--model-url", "http://"+ln.Addr().String(), "--prompt", "Make the greeting friendlier.")
			run := h.run("mine:latest")
			if rec := run.Recording; rec == nil || rec.Exchanges < 2 || rec.Incomplete != "" {
				t.Fatalf("the recording: %+v", rec)
			}
			h.must(s.Close())
			var r api.Replay
			o := h.try("replay", "mine:latest", "--verify", "--json")
			h.must(json.Unmarshal([]byte(o.out), &r))
			t.Log(o.out, o.stderr)
			want := "evidence before wire exit_code files " + c.says
			for _, l := range r.Levels {
				// Claude Code opens a connection at which it asks nothing, which is not recorded.
				if l.Level == "wire" && l.Is != api.ReplayDiffers && strings.Contains(l.Text, "requests answered from the recording") {
					continue
				}
				if name := strings.ReplaceAll(l.Level, " ", "_"); strings.Contains(want, name) && l.Is != api.ReplaySame {
					t.Errorf("%+v", l)
				}
			}
			again, err := os.ReadFile(filepath.Join(h.run(r.Again).Folder, "stdout"))
			h.must(err)
			if !strings.Contains(string(again), "The greeting is friendlier now.") {
				t.Errorf("it said:\n%s", again)
			}
		})
	}
}
