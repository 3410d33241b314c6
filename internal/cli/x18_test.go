package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/testenv"
)

// What a command does to many cells goes on for several at a time, and is told in the order
// of their names.
func TestX18ManyAtATime(t *testing.T) {
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprint("cell-", i))
	}
	var mu sync.Mutex
	now, most := 0, 0
	full := make(chan struct{}) // as many go on as may
	var said []string
	done := make(chan error, 1)
	start := func(do func(name string) (string, error)) {
		go func() { done <- each(names, do, func(name string) { said = append(said, name) }) }()
	}
	start(func(name string) (string, error) {
		mu.Lock()
		now++
		if most = max(most, now); now == manyAtOnce {
			select {
			case <-full:
			default:
				close(full)
			}
		}
		mu.Unlock()
		<-full
		mu.Lock()
		defer mu.Unlock()
		now--
		return name, nil
	})
	testenv.Receive(t, full, "as many at a time as may be")
	err, _ := testenv.Receive(t, done, "the end")
	if err != nil || most != manyAtOnce || !slices.Equal(said, names) {
		t.Fatalf("%d at a time, %v; said %v", most, err, said)
	}
}

// What is refused for one name is done for the others, and all refusals are told, in the order of
// the names; an interruption begins nothing new.
func TestX18ManyGoOnAfterARefusal(t *testing.T) {
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprint("cell-", i))
	}
	refused := map[string]error{"cell-20": errors.New("of cell-20"), "cell-25": errors.New("of cell-25"), "cell-26": errors.New("of cell-25")}
	var begun atomic.Int64
	var said []string
	do := func(name string) (string, error) {
		begun.Add(1)
		return name, refused[name]
	}
	err := each(names, do, func(name string) { said = append(said, name) })
	if got, ok := err.(*refusals); !ok || len(got.errs) != 3 || got.errs[0] != refused["cell-20"] || got.Error() != "cannot do it for 3 of 100: of cell-20; of cell-25" {
		t.Errorf("refused: %v", err)
	}
	if begun.Load() != 100 || len(said) != 97 || !slices.Contains(said, "cell-99") {
		t.Errorf("%d begun, %d said", begun.Load(), len(said))
	}
	if err := each(names[20:21], do, func(string) {}); err != refused["cell-20"] {
		t.Errorf("of one name: %v", err)
	}
	begun.Store(0)
	stop := &api.Error{Kind: "interrupted"}
	err = inTurn(names, func(name string) (string, error) {
		if begun.Add(1) == 3 {
			return "", stop
		}
		return name, refused[name]
	}, func(string) {})
	if err != stop || begun.Load() != 3 {
		t.Errorf("interrupted: %v, %d begun", err, begun.Load())
	}
}

// Each refusal is printed once, with its hint, and the exit code says that something failed.
func TestRefusalsArePrinted(t *testing.T) {
	print := func(json bool) (int, string, string) {
		dir := t.TempDir()
		out, _ := os.Create(filepath.Join(dir, "out"))
		errs, _ := os.Create(filepath.Join(dir, "err"))
		a := &app{json: json, stdout: out, stderr: errs}
		code := a.fail(&cobra.Command{Use: "stop"}, &refusals{of: 3, errs: []error{
			&api.Error{Kind: "not-found", Message: "cannot stop cell a: no cell a", Hint: "pando ls"}, &api.Error{Kind: "conflict", Message: "cannot stop cell b: it is busy"}}})
		o, _ := os.ReadFile(out.Name())
		e, _ := os.ReadFile(errs.Name())
		return code, string(o), string(e)
	}
	code, out, errs := print(false)
	if want := "pando: cannot stop cell a: no cell a\nhint: pando ls\npando: cannot stop cell b: it is busy\n"; code != 1 || out != "" || errs != want {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
	code, out, errs = print(true)
	if want := `{"error":{"kind":"not-found","message":"cannot do it for 2 of 3: cannot stop cell a: no cell a; cannot stop cell b: it is busy","hint":"pando ls"}}` + "\n"; code != 1 || out != want || errs != "" {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
}
