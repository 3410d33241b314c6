package state

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/ceiling"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/durable/durabletest"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/workspace"
)

const journal = "registry.log"

func open(t *testing.T, fs durable.FS) *Registry {
	t.Helper()
	r, err := Open(fs, journal, paths.Home{State: "/state", Cache: "/cache"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// written writes a journal of these records, and returns what is in it for nil.
func written(t *testing.T, fs durable.FS, records ...string) (has []string) {
	t.Helper()
	l, err := durable.OpenLog(fs, journal, func(b []byte) error { has = append(has, string(b)); return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, rec := range records {
		if err := l.Append([]byte(rec)); err != nil {
			t.Fatal(err)
		}
	}
	return has
}

// The journal begins with its version, also when it is written anew, and is not read when
// that is another.
func TestJournalSaysItsVersion(t *testing.T) {
	t.Parallel()
	fs := durabletest.New()
	for range 2 { // a journal that was just made, and one that was written anew
		r := open(t, fs)
		if err := r.Commit(&Cell{ID: "c-1", State: cell.Idle}); err != nil {
			t.Fatal(err)
		}
		if err := r.Rewrite(); err != nil {
			t.Fatal(err)
		}
		r.Close()
		if has := written(t, fs); len(has) != 2 || has[0] != `{"version":1}` {
			t.Fatalf("the journal has %q", has)
		}
	}
	for first, want := range map[string]string{
		`{"version":2}`:                      "it has version 2, and this pando reads version 1",
		`{"cell":{"id":"c-1"}}`:              "it does not say its version, and this pando reads version 1",
		`records in a form of another pando`: "it does not say its version, and this pando reads version 1",
	} {
		fs := durabletest.New()
		written(t, fs, first)
		_, err := Open(fs, journal, paths.Home{})
		if cell.KindOf(err) != cell.Unsupported || !strings.Contains(err.Error(), want) || !strings.Contains(cell.HintOf(err), "PANDO_HOME") {
			t.Errorf("%s: %v (%s)", first, err, cell.HintOf(err))
		}
		if has := written(t, fs); len(has) != 1 {
			t.Errorf("it was written to: %q", has)
		}
	}
}

// docs/format.md has all members of the records, and no others.
func TestFormatPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/format.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := func(title string) map[string]string {
		_, section, ok := strings.Cut(string(text), "# "+title+"\n")
		section, _, _ = strings.Cut(section, "\n#")
		_, table, _ := strings.Cut(section, "|---|---|\n")
		if !ok || table == "" {
			t.Errorf("the page has no table %q", title)
		}
		of := map[string]string{}
		for line := range strings.Lines(table) {
			if cells := strings.SplitN(line, "|", 4); len(cells) == 4 {
				for name := range strings.SplitSeq(cells[1], ",") {
					of[strings.Trim(name, " `")] = cells[2]
				}
			}
		}
		return of
	}
	records := map[string]reflect.Type{}
	for f := range reflect.TypeFor[Record]().Fields() {
		records[memberName(f)] = f.Type
	}
	if page := rows("The registry"); !maps.EqualFunc(page, records, func(string, reflect.Type) bool { return true }) {
		t.Errorf("the page has %q, records have %q", slices.Sorted(maps.Keys(page)), slices.Sorted(maps.Keys(records)))
	}
	tables := map[reflect.Type]string{reflect.TypeFor[Cell](): "A cell", reflect.TypeFor[Checkpoint](): "A checkpoint",
		reflect.TypeFor[Template](): "A template", reflect.TypeFor[Setup](): "A setup"}
	elsewhere := map[reflect.Type]bool{ // in the text, or on another page
		reflect.TypeFor[workspace.State](): true, reflect.TypeFor[workspace.Generation](): true,
		reflect.TypeFor[workspace.LeftOut](): true, reflect.TypeFor[api.TemplateRequest](): true, reflect.TypeFor[api.RaceRequest](): true,
		reflect.TypeFor[Run](): true, reflect.TypeFor[Shared](): true, reflect.TypeFor[int](): true, reflect.TypeFor[string](): true,
	}
	for typ := range tables {
		elsewhere[typ] = true
	}
	for typ, title := range tables {
		page := rows(title)
		for f := range typ.Fields() {
			if name := memberName(f); name != "-" {
				row, ok := page[name]
				if !ok {
					t.Errorf("%s: %s is not on the page", title, name)
				}
				delete(page, name)
				onPage(t, title+": "+name, row, f.Type, elsewhere)
			}
		}
		for name := range page {
			t.Errorf("%s: there is no member %s", title, name)
		}
	}
	others := rows("Other records")
	for name, typ := range records {
		for typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if row, ok := others[name]; !ok && !elsewhere[typ] {
			t.Errorf("the record %s is not on the page", name)
		} else {
			onPage(t, name, row, typ, elsewhere)
		}
	}
}

func memberName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return cmp.Or(name, f.Name)
}

// onPage checks that the text about a value names the members of all structs in it.
func onPage(t *testing.T, what, text string, typ reflect.Type, elsewhere map[reflect.Type]bool) {
	t.Helper()
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		onPage(t, what, text, typ.Elem(), elsewhere)
	case reflect.Struct:
		if elsewhere[typ] || typ.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
			return
		}
		for f := range typ.Fields() {
			if name := memberName(f); !strings.Contains(text, "`"+name+"`") {
				t.Errorf("%s: the page does not name its member %s", what, name)
			}
			onPage(t, what, text, f.Type, elsewhere)
		}
	}
}

// fill gives a value, and all that it holds, something that is not zero.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Float64:
		v.SetFloat(7.5)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0))
		fill(v.Index(1))
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(7, 0).UTC()))
			return
		}
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
	}
}

// What a run's record says the API shows, member by member, and nothing else but the folder.
func TestAPIShowsTheRecord(t *testing.T) {
	t.Parallel()
	var r Run
	fill(reflect.ValueOf(&r).Elem())
	members := func(v any, but string) map[string]json.RawMessage {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		m := map[string]json.RawMessage{}
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		if m[but] == nil {
			t.Errorf("there is no %s", but)
		}
		delete(m, but)
		return m
	}
	view := r.API()
	record, shown := members(r, "internal"), members(view, "folder")
	for name, v := range record {
		if string(shown[name]) != string(v) {
			t.Errorf("%s is %s in the record; the API shows %s", name, v, shown[name])
		}
	}
	for name := range shown {
		if beside := name == "hold" || name == "erased"; record[name] == nil && !beside { // those are in Retained
			t.Errorf("the record has no %s", name)
		}
	}
	for f, v := range reflect.ValueOf(view).Fields() {
		if v.IsZero() && f.Name != "Detached" { // which is of now
			t.Errorf("%s is not shown", f.Name)
		}
	}
}

// answers are what requests ask of a registry.
func answers(r *Registry) string {
	var out []any
	list, next, err := r.Find(Query{Label: "team", Limit: 3}, nil)
	out = append(out, list, next, err)
	list, _, err = r.Find(Query{States: []string{QueryPaused}, Oldest: true}, map[string]string{"team": "a"})
	out = append(out, list, err)
	over, due := r.LeasesOver(time.Unix(5000, 0))
	out = append(out, over, due, r.Size(), r.MadeBy("t-1"), r.CountForks("warm"), r.Cells())
	forks := r.ForksOf("warm")
	slices.SortFunc(forks, func(a, b Cell) int { return strings.Compare(string(a.ID), string(b.ID)) })
	out = append(out, forks)
	for _, s := range []ceiling.Scope{{Kind: "door", Name: ceiling.E2B}, {Kind: "token", Name: "t-1"}, {Kind: "label", Name: "team=a"}} {
		out = append(out, r.InUse(ceiling.Count{Scope: s}))
	}
	for id := range 4 {
		out = append(out, r.Forked(idOf(id)), r.HoldsOthers(idOf(id)))
	}
	states := r.CountStates()
	for _, s := range []cell.State{cell.Creating, cell.Idle, cell.Running, cell.Paused, cell.Failed} {
		out = append(out, states[[2]string{string(s), "none"}])
	}
	for v := range r.RunsFrom("/src/below") {
		out = append(out, v)
	}
	pending, ok := r.PendingFrom("/src")
	out = append(out, pending, ok, r.CellsBeginning("c-"), r.RunsBeginning("r-"))
	for n := range r.NumbersOf("w") {
		if out = append(out, n); n > 20 {
			break
		}
	}
	b, err := json.Marshal(out)
	return fmt.Sprint(string(b), err)
}

func idOf(n int) cell.ID { return cell.ID(fmt.Sprintf("c-%016x", n)) }

// The index says the same whether it grew with the records or is made of the journal.
func TestIndexIsThatOfTheJournal(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		fs := durabletest.New()
		r := open(t, fs)
		for step := range 60 {
			id := idOf(rnd.IntN(12))
			c := &Cell{ID: id, Name: fmt.Sprintf("w%d", rnd.IntN(9)), Backend: "none", Created: time.Unix(int64(rnd.IntN(50)), 0).UTC(), Of: []string{"", "warm"}[rnd.IntN(2)]}
			if other, taken := r.Named(c.Name); taken && other.ID != id { // which the engine refuses
				c.Name = ""
			}
			c.State = []cell.State{cell.Creating, cell.Idle, cell.Running, cell.Paused, cell.Failed, cell.Removed}[rnd.IntN(6)]
			if parent := idOf(rnd.IntN(4)); parent != id && rnd.IntN(2) == 0 {
				c.Parent, c.Family = &Origin{Cell: parent}, parent
			}
			l := &Lease{Cell: id, Labels: map[string]string{"team": string(rune('a' + rnd.IntN(2)))}, Owner: "t-1", Door: ceiling.E2B, Parked: rnd.IntN(4) == 0}
			if rnd.IntN(2) == 0 {
				l.Until = time.Unix(int64(rnd.IntN(9000)), 0).UTC()
			}
			v := &Run{ID: fmt.Sprintf("r-%016x", rnd.IntN(9)), Source: []string{"/src", "/src/below"}[rnd.IntN(2)], Created: c.Created, Phase: cell.Ended,
				Verdict: []cell.Verdict{cell.Pending, cell.Accepted}[rnd.IntN(2)]}
			if old, err := r.Run(v.RunID()); err == nil {
				v.Cell, v.Source, v.Created = old.Cell, old.Source, old.Created
			} else {
				v.Cell = string(id)
			}
			objects := []any{c, l, v, StateChange{Cell: idOf(rnd.IntN(12)), From: cell.Running, To: cell.Paused}}
			if rnd.IntN(3) == 0 { // a lease that changes alone
				objects = []any{l}
			}
			if rnd.IntN(8) == 0 {
				objects = append(objects, Forget(v.ID), Forget(idOf(rnd.IntN(12))))
			}
			if err := r.Commit(objects...); err != nil {
				t.Fatal(err)
			}
			if step%20 == 19 {
				if err := r.Rewrite(); err != nil {
					t.Fatal(err)
				}
			}
		}
		now := answers(r)
		r.Close()
		if then := answers(open(t, fs)); now != then {
			t.Fatalf("seed %d: it said\n%s\nand says\n%s", seed, now, then)
		}
	}
}
