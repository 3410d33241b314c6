package policy

import (
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

func TestKeepOfLayers(t *testing.T) {
	t.Parallel()
	type layers map[string]string
	for _, c := range []struct {
		what string
		of   layers
		want string // of events; "" for nothing said
		kind cell.Kind
	}{
		{"nothing", layers{LayerHost: ""}, "", ""},
		{"the host", layers{LayerHost: "90d"}, "90d", ""},
		{"the user shortens the host", layers{LayerHost: "90d", LayerUser: "30d"}, "90d", ""},
		{"the user lengthens it", layers{LayerHost: "30d", LayerUser: "90d"}, "90d", ""},
		{"the user keeps all", layers{LayerHost: "30d", LayerUser: "forever"}, "forever", ""},
		{"the host fixes it", layers{LayerHost: "{exactly: 30d}", LayerUser: "90d", LayerProject: "forever"}, "30d", ""},
		{"the user fixes less than the host", layers{LayerHost: "90d", LayerUser: "{exactly: 30d}"}, "90d", ""},
		{"a project shortens", layers{LayerUser: "30d", LayerProject: "1h"}, "30d", ""},
		{"a project alone", layers{LayerProject: "1h"}, "", ""},
		{"a run alone", layers{LayerRun: "1h"}, "", ""},
		{"a project lengthens", layers{LayerUser: "30d", LayerProject: "60d"}, "60d", ""},
		{"a run lengthens", layers{LayerUser: "36h", LayerRun: "48h"}, "2d", ""},
		{"a project fixes", layers{LayerUser: "30d", LayerProject: "{exactly: 60d}"}, "", cell.Denied},
	} {
		var list []Layer
		for _, name := range []string{LayerHost, LayerUser, LayerProject, LayerRun} {
			text, ok := c.of[name]
			if !ok || text == "" {
				continue
			}
			f, err := ParseFile(name, []byte("version: 1\nkeep:\n  events: "+text+"\n"))
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, Layer{name, f})
		}
		r, err := MergeLayers(Defaults(Host{}), list, Flags{})
		if cell.KindOf(err) != c.kind {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		got := ""
		if r.Keep.Events.Says() {
			got = r.Keep.Events.String()
		}
		if c.kind == "" && got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
	for _, bad := range []string{"receipts: 30d", "events: 0d", "events: 1", "events: -3h", "events: {exactly: never}", "patch: 3d"} {
		if _, err := ParseFile("p", []byte("version: 1\nkeep:\n  "+bad+"\n")); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

func TestKeepLengthens(t *testing.T) {
	t.Parallel()
	day := func(n int64) Period { return Period{For: n * 24 * 3600 * 1000} }
	fixed := day(1)
	fixed.Fixed = true
	now := Keep{Events: day(1), Output: fixed, Recordings: day(9)}
	got := now.Lengthen(Keep{Events: day(3), Output: day(3), Recordings: day(2), ToolCalls: day(2)})
	if want := (Keep{Events: day(3), Output: fixed, Recordings: day(9)}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
