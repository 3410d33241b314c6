package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/durable"
)

// Any change of a stored record is reported by verification: the seal covers the record, not
// only the log.
func TestF12RecordsAreWriteOnce(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.write("f", "old\n")
	h.exits(3, "run", "--cell", "c", "--on-failure", "pending", "--timeout", "1m", "--", "sh", "-c", "echo new > f; exit 3")
	run := h.run("c:latest")
	if v := h.verifySel(run.ID); !v.OK {
		t.Fatalf("untouched: %+v", v.Problems)
	}
	h.pando("daemon", "stop")

	records := h.records()
	var was string
	for _, r := range records {
		if strings.HasPrefix(r, `{"run":`) {
			was = r
		}
	}
	if was == "" {
		t.Fatal("no record of the run")
	}
	for i, x := range []struct{ field, value string }{
		{"verdict", `"accepted"`}, {"exit_code", `0`}, {"reason", `"all is well"`}, {"backend", `"microvm"`}, {"command", `["true"]`},
		{"source", `"/elsewhere"`}, {"isolation", `"not isolated"`}, {"policy_digest", `"sha256:` + strings.Repeat("0", 64) + `"`}, {"downgrades", `["none"]`},
		{"changes.files", `7`}, {"before.tree_digest", `"sha256:` + strings.Repeat("1", 64) + `"`}, {"after.content_digest", `"sha256:` + strings.Repeat("2", 64) + `"`},
		{"assurance.isolation", `["a wall"]`}, {"assurance.limits", `[]`}, {"assurance.canaries.passed", `999`}, {"assurance.network", `"none at all"`},
		{"output.stdout.bytes", `12`}, {"usage.peak_memory", `1`}, {"left_out", `[{"path":".env","why":"none"}]`}, {"workspace.provider", `"cas"`},
		{"started", `"2020-01-01T00:00:00Z"`}, {"ended", `"2020-01-01T00:00:00Z"`},
	} {
		if i%3 != 0 && os.Getenv("E2E_SOAK") == "" {
			continue // TestF12EveryFieldOfARecordIsSealed has all of them
		}
		h.append(set(t, was, strings.Split("run."+x.field, "."), x.value))
		v := h.verifySel(run.ID)
		if v.OK || len(v.Problems) == 0 || v.Problems[0].Reason != "edited" || !strings.Contains(v.Problems[0].File, run.ID) {
			t.Errorf("%s changed: %+v", x.field, v.Problems)
		}
		if all := h.verify(); all.OK {
			t.Errorf("%s changed: --all sees nothing", x.field)
		}
		h.pando("daemon", "stop")
	}
	h.append(was)
	if v := h.verify(); !v.OK {
		t.Errorf("as it was: %+v", v.Problems)
	}
	// A verdict that came later has its own receipt, and the record may say it.
	h.pando("accept", "c", "--force", "--reason", "for the test")
	if v := h.verify(); !v.OK {
		t.Errorf("accepted: %+v", v.Problems)
	}
	if r := decoded[api.Run](h, "show", run.ID); r.Verdict != "accepted" {
		t.Errorf("the verdict is %s", r.Verdict)
	}
}

// records are what the registry holds, oldest first. No daemon may run.
func (h *host) records() (out []string) {
	h.t.Helper()
	l, err := durable.OpenLog(durable.Disk(h.state()), "registry.log", func(b []byte) error {
		out = append(out, string(b))
		return nil
	})
	h.must(err)
	h.must(l.Close())
	return out
}

// append adds a record to the registry by force.
func (h *host) append(record string) {
	h.t.Helper()
	l, err := durable.OpenLog(durable.Disk(h.state()), "registry.log", func([]byte) error { return nil })
	h.must(err)
	h.must(l.Append([]byte(record)))
	h.must(l.Close())
}

// set changes one field of a JSON document.
func set(t *testing.T, doc string, path []string, value string) string {
	t.Helper()
	var m map[string]json.RawMessage
	must(t, json.Unmarshal([]byte(doc), &m))
	if _, there := m[path[0]]; !there {
		t.Fatalf("there is no %s in %s", path[0], doc)
	}
	if len(path) == 1 {
		m[path[0]] = json.RawMessage(value)
	} else {
		m[path[0]] = json.RawMessage(set(t, string(m[path[0]]), path[1:], value))
	}
	b, err := json.Marshal(m)
	must(t, err)
	return string(b)
}
