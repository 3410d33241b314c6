package microvm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux/kvm"
)

// A machine that another QEMU has saved, or one with another accelerator, is refused
// before anything is made, with both; what can't be read is corrupt.
func TestD45ImageOfAnotherMachine(t *testing.T) {
	cfg := machines(t, t.TempDir())
	cfg.KVM = func() kvm.Verdict { return kvm.Verdict{State: kvm.Hollow} }
	back := New(cfg)
	defer back.Close()
	now, err := back.needs()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range imageNames {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	try := func(record []byte) error {
		if err := os.WriteFile(filepath.Join(dir, "cell.json"), record, 0o600); err != nil {
			t.Fatal(err)
		}
		o, err := back.open(&cell.Spec{Memory: dir})
		for _, f := range o.Files {
			f.Close()
		}
		return err
	}
	for _, c := range []struct {
		need, is string
		want     cell.Kind
	}{
		{"QEMU", now["QEMU"], ""},
		{"QEMU", "1.2.3", cell.Unsupported},
		{"accelerator", "kvm", cell.Unsupported},
		{"devices", "1", cell.Unsupported},
		{"processor", "sse9", cell.Unsupported}, // which a machine that is emulated doesn't name
	} {
		needs := map[string]string{"QEMU": now["QEMU"], "accelerator": now["accelerator"], "devices": now["devices"], c.need: c.is}
		record, err := json.Marshal(map[string]any{"needs": needs, "guest": map[string]any{}})
		if err != nil {
			t.Fatal(err)
		}
		err = try(record)
		if cell.KindOf(err) != c.want || c.want != "" && (!strings.Contains(err.Error(), c.is) || !strings.Contains(err.Error(), now[c.need])) {
			t.Errorf("an image that needs %s %s: %v", c.need, c.is, err)
		}
	}
	if err := try([]byte("{")); cell.KindOf(err) != cell.Corrupt {
		t.Errorf("an image that can't be read: %v", err)
	}
}
