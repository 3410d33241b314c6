package cell

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestF24NamesRefused(t *testing.T) {
	bad := []string{"", ".", "..", "../x", "/x", "a b", "-rf", "$(id)", strings.Repeat("a", 300), "a\x00b", "a/b", "é", ".x", "a\n", "c-0123456789abcdef", "r-abcd"}
	for _, n := range bad {
		if err := CheckName(n); KindOf(err) != Invalid {
			t.Errorf("CheckName(%q) = %v, want an Invalid error", n, err)
		}
	}
	for _, n := range []string{"a", "web", "_x", "9", "a.b-c_d", strings.Repeat("a", 64), "c-web"} {
		if err := CheckName(n); err != nil {
			t.Errorf("CheckName(%q) = %v", n, err)
		}
	}
}

// Every pair of states is either in the table or refused with a Conflict that
// leaves the state as it was.
func TestStateMoves(t *testing.T) {
	all := []State{"", Creating, Idle, Running, Paused, Failed, Removed}
	allowed := map[string]bool{}
	for from, tos := range moves {
		for _, to := range tos {
			allowed[string(from)+">"+string(to)] = true
		}
	}
	if len(moves) != len(all) {
		t.Fatalf("table has %d states, want %d", len(moves), len(all))
	}
	for _, from := range all {
		for _, to := range all {
			got, err := from.To(to)
			if allowed[string(from)+">"+string(to)] {
				if err != nil || got != to {
					t.Errorf("%s→%s refused: %v", from, to, err)
				}
			} else if KindOf(err) != Conflict || got != from {
				t.Errorf("%s→%s = %s, %v; want a conflict", from, to, got, err)
			}
		}
	}
	for _, s := range all {
		if s == Removed || s == "" {
			continue
		}
		if _, err := s.To(Removed); err != nil {
			t.Errorf("a %s cell cannot be removed", s)
		}
	}
}

func TestVerdictMoves(t *testing.T) {
	if _, err := Restored.To(Accepted); KindOf(err) != Conflict {
		t.Error("F5: a restored run must not become accepted")
	}
	if _, err := Verdict("").To(Forked); KindOf(err) != Conflict {
		t.Error("a run must end before it is forked")
	}
	if _, err := Pending.To(Accepted); err != nil {
		t.Error(err)
	}
}

func TestErrorKindAndHint(t *testing.T) {
	in := Errorf(NotFound, "a.B", "look elsewhere", "no cell %q", "x")
	err := fmt.Errorf("cannot show: %w", &Error{Op: "c.D", Kind: Conflict, Err: in})
	if KindOf(err) != Conflict {
		t.Errorf("KindOf = %s, want the outermost", KindOf(err))
	}
	if HintOf(err) != "look elsewhere" {
		t.Errorf("HintOf = %q", HintOf(err))
	}
	if !errors.Is(err, KindError(NotFound)) || errors.Is(err, KindError(Denied)) {
		t.Error("errors.Is by kind")
	}
	if KindOf(errors.New("x")) != Internal || KindOf(nil) != "" {
		t.Error("KindOf of others")
	}
}

func TestDigestText(t *testing.T) {
	d := Sum([]byte("x"))
	b, _ := d.MarshalText()
	var e Digest
	if err := e.UnmarshalText(b); err != nil || e != d {
		t.Fatal(err)
	}
	for _, s := range []string{"sha256:", "sha256:zz", "md5:00", strings.Repeat("a", 64)} {
		if _, err := ParseDigest(s); err == nil {
			t.Errorf("ParseDigest(%q) accepted", s)
		}
	}
}
