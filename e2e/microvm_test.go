package e2e

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/testenv"
	vmmboot "github.com/pando-dev/pando/internal/vmm/boot"
)

// notOnMicroVM are the scripts that are not run again with microVM cells, each with
// the reason, beside those that are not run on gVisor.
var notOnMicroVM = map[string]string{
	"checkpoints-copy-what-changed":    "is about checkpoints of files alone; these have memory too",
	"f10-policy-is-what-was-digested":  "its policy has a time-out that an emulated machine may not meet",
	"f11-sealing-failures-are-visible": "is about the ledger, and a record's size decides whether it fits a full disk",
	"x27-full-disk-has-a-way-out":      "fills a disk of 40 MB, which QEMU's own copy does not fit on",
	"x27-nothing-is-free":              "fills a disk of 40 MB, which QEMU's own copy does not fit on",
	"x27-state-has-a-budget":           "has a budget of 24 MiB, and QEMU's own copy takes 60",
}

// oftenOnMicroVM are those of them that every change must pass: an emulated machine
// boots for seconds.
var oftenOnMicroVM = []string{"run", "microvm/d42-copies"}

func TestScriptsOnMicroVM(t *testing.T) {
	if !hasGvisor() {
		t.Skip("needs bin/pando-runsc and bin/pando-guest: make")
	}
	testenv.Program(t, "qemu-system-x86_64")
	if _, err := vmmboot.Find(vmmboot.Images, vmmboot.Modules); err != nil {
		t.Skip("needs a kernel for machines")
	}
	// A shim of pyenv is a script of forty processes, which take ten seconds there.
	t.Setenv("PATH", strings.Join(slices.DeleteFunc(filepath.SplitList(os.Getenv("PATH")), func(dir string) bool { return strings.Contains(dir, "/.pyenv/") }), ":"))
	not := maps.Clone(notOnGvisor)
	maps.Copy(not, notOnMicroVM)
	again{backend: "microvm", not: not, often: oftenOnMicroVM, own: []string{"whole/*", "microvm/*"}}.run(t)
}
