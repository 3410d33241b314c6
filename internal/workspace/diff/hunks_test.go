package diff

import (
	"fmt"
	"strings"
	"testing"

	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

func TestHunks(t *testing.T) {
	var old, now strings.Builder
	for i := range 30 {
		fmt.Fprintf(&old, "line %d\n", i+1)
		switch i {
		case 3:
			now.WriteString("new \x1b[31m\u202e\n")
		case 20:
			fmt.Fprintf(&now, "line %d\nmore\n", i+1)
		default:
			fmt.Fprintf(&now, "line %d\n", i+1)
		}
	}
	before := wt.Model{"f": wt.Plain(old.String()), "b": wt.Plain("\x00")}
	after := wt.Model{"f": wt.Plain(now.String()), "b": wt.Plain("\x00\x00")}
	d := mustCompare(t, before.Side(t, nil), after.Side(t, nil), Options{})
	for _, c := range d.Files {
		lines, more, why, err := d.Hunks(t.Context(), &c, 100)
		if err != nil || more != 0 {
			t.Fatalf("%s: %d more, %v", c.Path, more, err)
		}
		if c.Path == "b" {
			if why != WhyBinary || len(lines) > 0 {
				t.Errorf("a binary file has %d lines, %q", len(lines), why)
			}
			continue
		}
		a, b := strings.Split(old.String(), "\n"), strings.Split(now.String(), "\n")
		seen := ""
		for _, l := range lines {
			seen += string(l.Kind)
			if l.Old > 0 && l.Kind != ' ' && a[l.Old-1] != l.Text || l.New > 0 && visible(b[l.New-1]) != l.Text {
				t.Errorf("%c %d %d %q: not what the files have", l.Kind, l.Old, l.New, l.Text)
			}
			if strings.ContainsAny(l.Text, "\x1b\u202e") {
				t.Errorf("%q is not escaped", l.Text)
			}
		}
		if seen != "@   -+   @   +   " {
			t.Errorf("the lines are %q", seen)
		}
		if some, more, _, err := d.Hunks(t.Context(), &c, 4); err != nil || len(some) != 4 || more != len(lines)-4 {
			t.Errorf("of %d lines, four are asked for: %d and %d more, %v", len(lines), len(some), more, err)
		}
	}
}
