package evidence

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/ocsf"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// told reads a run's events to their end.
func (b *bed) told(r *state.Run, q EventQuery) (list []api.Event, err error) {
	b.Helper()
	events, err := b.Events(b.ctx, r.RunID(), q)
	if err != nil {
		return nil, err
	}
	for line, err := range events {
		if err != nil {
			return list, err
		}
		var ev api.Event
		b.must(json.Unmarshal(line, &ev))
		list = append(list, ev)
	}
	return list, nil
}

func kindsOf(list []api.Event) string {
	var kinds []string
	for _, ev := range list {
		kinds = append(kinds, ev.Kind)
	}
	return strings.Join(kinds, " ")
}

func TestEventsOfARun(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	run := b.run()
	r := &run
	list, err := b.told(r, EventQuery{})
	if got := kindsOf(list); err != nil || got != "process.start process.running process.exit" {
		t.Fatalf("events %q, %v", got, err)
	}
	last := list[2]
	if last.Run != r.ID || last.Seq != 3 || !strings.HasPrefix(last.Text, "exit 3, 3 B to stdout, 0 B to stderr") {
		t.Errorf("last event %+v", last)
	}
	if list, err := b.told(r, EventQuery{Kinds: []string{"process.exit", "limit"}}); err != nil || kindsOf(list) != "process.exit" {
		t.Errorf("by kind: %q, %v", kindsOf(list), err)
	}
	if list, err := b.told(r, EventQuery{Denied: true}); err != nil || len(list) != 0 {
		t.Errorf("denied: %q, %v", kindsOf(list), err)
	}
	_, err = b.told(r, EventQuery{Kinds: []string{"exit"}})
	b.wantKind("an unknown kind", err, cell.Invalid, `"exit"`)
	_, err = b.told(r, EventQuery{Format: "xml"})
	b.wantKind("an unknown format", err, cell.Invalid, `"xml"`)
}

// What was written to a run's stream behind its back is said, whatever it was,
// after what is still whole.
func TestEventsThatWereChanged(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for name, c := range map[string]struct {
		change func(lines []string) []string
		whole  int
	}{
		"edited":     {func(l []string) []string { l[1] = strings.Replace(l[1], `"pid":`, `"pid":1`, 1); return l }, 2},
		"dropped":    {func(l []string) []string { return slices.Delete(l, 1, 2) }, 1},
		"cut off":    {func(l []string) []string { return l[:2] }, 2},
		"torn":       {func(l []string) []string { l[2] = l[2][:20]; return l }, 2},
		"no newline": {func(l []string) []string { l[2] = strings.TrimSuffix(l[2], "\n"); return l }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			run := b.run()
			r := &run
			path := filepath.Join(r.Folder, eventsFile)
			text, err := os.ReadFile(path)
			b.must(err)
			lines := c.change(slices.Collect(strings.Lines(string(text))))
			b.must(os.WriteFile(path, []byte(strings.Join(lines, "")), 0o600))
			list, err := b.told(r, EventQuery{Kinds: []string{"process"}})
			b.wantKind(name, err, cell.Corrupt, "cannot trust the events of run "+r.ID)
			if len(list) != c.whole {
				t.Errorf("%d events before it was said, want %d", len(list), c.whole)
			}
			b.must(os.Remove(path))
			_, err = b.told(r, EventQuery{})
			b.wantKind("removed", err, cell.NotFound, "are gone")
			b.must(os.WriteFile(path, text, 0o600))
			if _, err := b.told(r, EventQuery{}); err != nil {
				t.Errorf("put back: %v", err)
			}
		})
	}
}

func TestEventsAreFollowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		c := b.cell()
		r, s := b.begun(&c)
		b.ends[r.RunID()] = make(chan struct{})
		s.begin()
		events, err := b.Events(b.ctx, r.RunID(), EventQuery{Follow: true})
		b.must(err)
		var kinds []string
		over := false
		for line, err := range events {
			b.must(err)
			var ev api.Event
			b.must(json.Unmarshal(line, &ev))
			kinds = append(kinds, ev.Kind)
			if ev.Kind == "process.running" { // it is told while the run goes on
				// Without following, what there is by now is told, and that is no error.
				list, err := b.told(&r, EventQuery{})
				if err != nil || kindsOf(list) != "process.start process.running" {
					t.Errorf("meanwhile %q, %v", kindsOf(list), err)
				}
				time.AfterFunc(time.Second, func() { s.end(); b.ended(&r, &c) })
				time.AfterFunc(time.Minute, func() { over = true; close(b.ends[r.RunID()]) })
			}
			if over {
				t.Errorf("%s is told when the run has ended", ev.Kind)
			}
		}
		if got := strings.Join(kinds, " "); got != "process.start process.running process.exit" {
			t.Errorf("followed %q", got)
		}
	})
}

// A line that is just being written is no broken one, and one that stays as it
// is at the end of its run is.
func TestEventTailHoldsBackHalfALine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		f, err := os.Create(filepath.Join(dir, eventsFile))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		w := receipt.NewEventWriter(f, receipt.StartChain("r-1"))
		if err := w.Emit("a", nil); err != nil {
			t.Fatal(err)
		}
		f.WriteString(`{"seq":2,`)
		ended := make(chan struct{})
		read := func(follow bool) (n int, err error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			tail := newEventTail(ctx, dir, ended, follow)
			defer tail.close()
			for _, err := range receipt.ReadEvents(tail, "r-1") {
				if err != nil {
					return n, err
				}
				n++
			}
			return n, nil
		}
		if n, err := read(false); n != 1 || err != nil {
			t.Errorf("%d events, %v", n, err)
		}
		if n, err := read(true); n != 1 || cell.KindOf(err) != cell.Unavailable {
			t.Errorf("%d events, %v; want to wait for the second", n, err)
		}
		close(ended)
		if n, err := read(true); n != 1 || cell.KindOf(err) != cell.Corrupt {
			t.Errorf("%d events, %v; want the end to be corrupt", n, err)
		}
	})
}

func TestEventText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind, fields, want string
		refused            bool
	}{
		{"process.start", `{"args":2,"tty":true}`, "starting, 2 words, on a terminal", false},
		{"process.failed", `{"error":"no such file"}`, "failed to start: no such file", false},
		{"process.signal", `{"signal":"SIGINT"}`, "was sent SIGINT", false},
		{"process.exit", `{"code":137,"signal":"SIGKILL","cause":"memory limit","left_over":2,"stdout":{"bytes":2048}}`,
			"ended by SIGKILL (memory limit), 2 KiB to stdout, 0 B to stderr, CPU 0s, 2 left over ended with it", false},
		{"process.exec", `{"pid":12,"parent":3,"argv":["go","test","./..."],"cut":0,"path":"/usr/bin/go","tried":[],"as":"asked"}`, "go test ./... (pid 12, asked)", false},
		{"process.exec", `{"pid":12,"argv":["sh","-c","e"],"cut":2048,"as":"observed"}`, "sh -c e … (2 KiB more) (pid 12, observed)", false},
		{"process.exec", `{"pid":12,"argv":["x"],"cut":-1,"as":"asked"}`, "x … (more) (pid 12, asked)", false},
		{"process.ended", `{"pid":12,"code":3,"signal":"","as":"observed"}`, "pid 12 exit 3", false},
		{"process.ended", `{"pid":12,"code":137,"signal":"SIGKILL","as":"observed"}`, "pid 12 ended by SIGKILL", false},
		{"process.ended", `{"pid":12,"code":null,"signal":"","as":"not seen"}`, "pid 12 ended, how was not seen", false},
		{"process.lost", `{"starts":2,"ends":1,"why":"too many"}`, "not recorded: 2 starts and 1 ends of processes: too many", false},
		{"process.unseen", `{"what":"exit codes","why":"old kernel"}`, "not seen: exit codes: old kernel", false},
		{"limit.time", `{"timeout_ms":1500}`, "its time was up after 1.5s", true},
		{"limit.disk", `{"limit":1048576,"used":2097152}`, "over its disk: 2 MiB of 1 MiB", true},
		{"decision", `{"id":"q-1","access":{"act":"request","host":"api.github.com","port":443,"scheme":"https","method":"POST","path":"/repos"},
			"decision":{"effect":"deny","rule":"deny 1","origin":"pando.policy.yaml:31","reason":"writing is denied","permit":"--allow x","by":"policy"},"count":3}`,
			"denied POST https://api.github.com/repos (3 times) by deny 1 (pando.policy.yaml:31): writing is denied; --allow x would allow it", true},
		{"decision", `{"access":{"act":"connect","addr":"169.254.169.254","port":80,"transport":"tcp"},"decision":{"effect":"","rule":"default","origin":"default"}}`,
			"denied connect 169.254.169.254:80 by default", true},
		{"decision", `{"access":{"act":"resolve","host":"example.com"},"decision":{"effect":"allow","rule":"allow 1","origin":"--allow example.com","by":"person","credential":"k"}}`,
			"allowed resolve example.com by allow 1 (--allow example.com), as a person said, with credential k", false},
		{"decision", `{"access":{"act":"sign","host":"github.com","key":"SHA256:x"},"decision":{"effect":"ask","rule":"ask 1","origin":"p:3","reason":"why not"}}`,
			"asked sign for github.com with SHA256:x by ask 1 (p:3): why not", false},
		{"decision", `17`, "17", true},
		{"flow", `{"conn":"1","host":"h","addr":"1.2.3.4","port":443,"scheme":"https","method":"GET","path":"/a","status":200,"sent":10,"received":4096,"ms":12.34,"secret":"k"}`,
			"GET https://h/a 200, 10 B out, 4 KiB in, 12.3ms, credential k put in", false},
		{"flow", `{"conn":"1","addr":"::1","port":22,"sent":1,"received":2,"ms":1,"error":"budget"}`, "connect [::1]:22, 1 B out, 2 B in, 1ms, ended: budget", false},
		{"network.none", `{"tries":3}`, "looked for a network, and the cell has none: 3 packets had nowhere to go", true},
		{"network.earlier", `{"allowed":1,"denied":2,"asked":3,"flows":4}`, "while no run was there: 1 allowed, 2 denied, 3 asked, 4 ended", true},
		{"kernel.missing", `{"calls":["mseal","prctl 0x3b"],"others":0}`, "called what the cell's kernel does not have: mseal, prctl 0x3b", false},
		{"output", `{"stdout":2048,"stderr":7}`, "has written 2 KiB to stdout, 7 B to stderr", false},
		{"sample", `{"cpu_us":1500000,"memory":2097152,"written":0}`, "uses 2 MiB, 1.5 s of processors so far", false},
		{"kind.of.tomorrow", `{"a":1}`, `{"a":1}`, false},
	} {
		ev := receipt.Event{Kind: c.kind, Fields: json.RawMessage(c.fields)}
		if got := eventText(ev); got != c.want {
			t.Errorf("%s: %q, want %q", c.kind, got, c.want)
		}
		if refused(ev) != c.refused {
			t.Errorf("%s %s: refused %v", c.kind, c.fields, !c.refused)
		}
	}
}

// tags are the names of a struct's fields on the wire.
func tags(v any) (names []string) {
	for i := range reflect.TypeOf(v).NumField() {
		name, _, _ := strings.Cut(reflect.TypeOf(v).Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

// The list of kinds, which the reference is made from, says of each what it
// carries, no more and no less.
func TestEventKindsAreComplete(t *testing.T) {
	t.Parallel()
	listed := map[string][]string{}
	for _, k := range EventKinds() {
		for _, f := range k.Fields {
			listed[k.Kind] = append(listed[k.Kind], f.Name)
		}
	}
	has := map[string][]string{"decision": tags(cell.Decided{}), "flow": tags(cell.Flow{}), "network.earlier": tags(server.Earlier{}),
		"sample": tags(cell.Sample{}), "output": tags(cell.Written{}), "process.start": tags(startFields{}), "process.running": tags(runningFields{}), "process.exit": tags(exitFields{}), "process.failed": tags(failedFields{}), "process.signal": tags(signalFields{}),
		"process.exec": tags(server.ExecFields{}), "process.ended": tags(server.EndedFields{}), "process.lost": tags(server.LostFields{}), "process.unseen": tags(server.UnseenFields{}),
		"limit.time": tags(timeFields{}), "limit.disk": tags(diskFields{}), "network.none": tags(noneFields{}), "network.unresolved": tags(cell.Unresolved{}), "kernel.missing": tags(server.Missing{}), "budget": tags(cell.BudgetNote{})}
	for kind, names := range has {
		slices.Sort(names)
		slices.Sort(listed[kind])
		if d := cmp.Diff(names, listed[kind]); d != "" {
			t.Errorf("%s: (-has +listed)\n%s", kind, d)
		}
	}
	if len(has) != len(listed) {
		t.Errorf("%d kinds are looked at, %d are listed", len(has), len(listed))
	}
}

func TestEventsAsOCSF(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := b.run()
	read := func(q EventQuery) (list []ocsf.Event) {
		t.Helper()
		q.Format = api.EventsOCSF
		events, err := b.Events(b.ctx, r.RunID(), q)
		b.must(err)
		for line, err := range events {
			b.must(err)
			var e ocsf.Event
			b.must(json.Unmarshal(line, &e))
			list = append(list, e)
		}
		return list
	}
	list := read(EventQuery{})
	if len(list) != 2 || list[0].TypeName != "Process Activity: Launch" || list[1].TypeName != "Process Activity: Terminate" || *list[1].ExitCode != 3 {
		t.Fatalf("%+v", list)
	}
	if e := list[1]; e.Process.PID != list[0].Process.PID || e.Process.PID == 0 || e.Policy.UID != r.Policy || e.Unmapped["receipt"] != r.Receipt || e.Metadata.Product.Version != "test" {
		t.Errorf("%+v", e)
	}
	// What is left out by a filter is still known to what follows.
	if list := read(EventQuery{Kinds: []string{"process.exit"}}); len(list) != 1 || list[0].Process.PID == 0 {
		t.Errorf("%+v", list)
	}
	// What was found after the run, and what refused its start.
	run := r
	run.Secrets = &state.Secrets{Found: []state.SecretFound{{In: "workspace", Path: "a", Credential: "github", Encoding: "plain"}}}
	run.Error = &state.Error{Kind: "denied", Subject: cell.Canary, Message: `cannot start sh: the canary "mount" was not stopped as it must be (0)`}
	b.must(b.reg.Commit(&run))
	list = read(EventQuery{})
	if len(list) != 4 || list[2].ClassName != "Detection Finding" || list[3].FindingInfo.Types[0] != "Credential exposure" {
		t.Errorf("%+v", list)
	}
}

// Every kind of event that is recorded is listed: the reference, --kind and OCSF go by the
// list.
func TestEveryRecordedKindIsListed(t *testing.T) {
	t.Parallel()
	call := regexp.MustCompile(`(?:\.[eE]mit\(|\.during\(|s\.write\()"([a-z.]+)"`)
	listed := map[string]bool{}
	for _, k := range EventKinds() {
		listed[k.Kind] = false
	}
	for _, dir := range []string{"keeper", "gateway", "credential", "backend"} {
		err := filepath.WalkDir(filepath.Join("..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range call.FindAllStringSubmatch(string(text), -1) {
				if _, ok := listed[m[1]]; !ok {
					t.Errorf("%s records %q, which EventKinds does not list", path, m[1])
				}
				listed[m[1]] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for kind, recorded := range listed {
		if !recorded {
			t.Errorf("nothing records %q", kind)
		}
	}
}
