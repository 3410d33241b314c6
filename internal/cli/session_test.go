package cli

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/paths"
)

// answered is a command line with a daemon that gives these answers, by method and path; the buffer has what it says.
func answered(t *testing.T, answers map[string]any) (*app, *bytes.Buffer) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		is, ok := answers[r.Method+" "+r.URL.Path+r.URL.Query().Get("cell")]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			is = api.Error{Kind: "not-found", Message: "there is no " + r.URL.Path}
		}
		json.NewEncoder(w).Encode(is)
	}))
	t.Cleanup(srv.Close)
	a := deaf(t)
	said := new(bytes.Buffer)
	a.stderr, a.client = said, client.New(client.Config{Host: srv.URL})
	return a, said
}

// again are the flags of an agent that is started again in cell app.
func again(t *testing.T, a *app, args ...string) (*cobra.Command, *runFlags, *api.AgentRequest) {
	t.Helper()
	c, r, of := &cobra.Command{}, new(runFlags), new(api.AgentRequest)
	c.SetContext(t.Context())
	a.addRunFlags(c, r)
	addAgentFlags(c, of, new([]string))
	if err := c.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	if _, err := a.agentAgain(c, "app", true); err != nil {
		t.Fatal(err)
	}
	return c, r, of
}

// A start again is as the latest one was, also where that had the built-in defaults and the configuration
// has others.
func TestStartAgainIsNotWidened(t *testing.T) {
	for name, c := range map[string]struct {
		latest api.Run
		args   []string
		want   api.AgentRequest
		said   string
	}{
		"the built-in defaults": {want: api.AgentRequest{Mode: "strict", Autonomy: "full"}},
		"others":                {latest: api.Run{Mode: "development", Autonomy: "prompting", ModelURL: "http://a"}, want: api.AgentRequest{Mode: "development", Autonomy: "prompting", ModelURL: "http://a"}},
		"of flags":              {args: []string{"--mode", "build", "--model-url", "http://b", "--trust-repository"}, want: api.AgentRequest{Mode: "build", Autonomy: "full", ModelURL: "http://b", TrustRepository: true}},
		"prompting, and a task": {latest: api.Run{Autonomy: "prompting"}, args: []string{"--prompt", "x"}, want: api.AgentRequest{Mode: "strict", Autonomy: "full", Prompt: "x"}, said: "prompting is not taken over"},
		"prompting of a flag":   {args: []string{"--prompt", "x", "--autonomy", "prompting"}, want: api.AgentRequest{Mode: "strict", Autonomy: "prompting", Prompt: "x"}},
		"breakglass":            {latest: api.Run{Mode: "breakglass"}, want: api.AgentRequest{Mode: "strict", Autonomy: "full"}, said: "breakglass is not taken over"},
		"breakglass again":      {latest: api.Run{Mode: "breakglass"}, args: []string{"--mode", "breakglass"}, want: api.AgentRequest{Mode: "breakglass", Autonomy: "full"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.latest.ID, c.latest.Cell, c.latest.Agent, c.want.Continue = "r-1", "c-1", "claude", true
			a, said := answered(t, map[string]any{
				"GET /v1/cells/app": api.Cell{ID: "c-1", Name: "app", Agent: "claude"}, "GET /v1/cells": []api.Cell{},
				"GET /v1/runsc-1": []api.Run{{ID: "r-2", Cell: "c-1"}, c.latest, {ID: "r-0", Cell: "c-1", Agent: "claude", Mode: "build"}},
			})
			a.dir, a.home = t.TempDir(), paths.Home{Policy: t.TempDir() + "/policy.yaml"}
			if err := os.WriteFile(a.home.Config(), []byte(`{"version":1,"user":{"mode":["build"],"autonomy":["prompting"],"model-url":["http://config"],"trust-repository":["true"]}}`), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd, r, of := again(t, a, c.args...)
			if err := a.useDefaults(cmd, r); err != nil {
				t.Fatal(err)
			}
			got, _ := json.Marshal(of)
			if want, _ := json.Marshal(c.want); !bytes.Equal(got, want) {
				t.Errorf("%s, not %s", got, want)
			}
			if c.said == "" && said.Len() > 0 || !strings.Contains(said.String(), c.said) {
				t.Errorf("it says %q", said)
			}
		})
	}
}

// A fork in which the agent was not started yet has the start of its source, as that was when the fork was made.
func TestStartAgainInAFork(t *testing.T) {
	at := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	run := func(cell string, minute int, autonomy string) api.Run {
		return api.Run{ID: "r-1", Cell: cell, Agent: "claude", Created: at.Add(time.Duration(minute) * time.Minute), Autonomy: autonomy, ModelURL: "http://a", Phase: phaseExecuting}
	}
	answers := map[string]any{
		"GET /v1/cells/app": api.Cell{ID: "c-3", Name: "app", Agent: "claude", Created: at.Add(20 * time.Minute), Parent: &api.Parent{Cell: "c-2"}},
		"GET /v1/cells/c-2": api.Cell{ID: "c-2", Created: at.Add(10 * time.Minute), Parent: &api.Parent{Cell: "c-1"}},
		"GET /v1/cells/c-1": api.Cell{ID: "c-1", Created: at},
		"GET /v1/runsc-3":   []api.Run{},
		"GET /v1/runsc-2":   []api.Run{run("c-2", 30, "")},
		"GET /v1/runsc-1":   []api.Run{run("c-1", 15, ""), run("c-1", 5, "prompting")},
	}
	a, said := answered(t, answers)
	if _, _, of := again(t, a); of.Autonomy != "prompting" || of.ModelURL != "http://a" || said.Len() > 0 {
		t.Errorf("%+v, and it says %q", of, said)
	}
	delete(answers, "GET /v1/cells/c-1")
	if _, _, of := again(t, a); of.ModelURL != "" || !strings.Contains(said.String(), "no start in cell app is known") {
		t.Errorf("its source was removed: %+v, and it says %q", of, said)
	}
}
