package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// notOnGvisor are the scripts that are not run again with gVisor cells, each with the
// reason. All others are: what was promised of cells does not depend on what they run
// on, and where it does a line of the script says so ([gvisor], [!gvisor]).
var notOnGvisor = map[string]string{
	"bench":                 "has one of its own",
	"soak-forks":            "ten thousand forks have ten thousand kernels",
	"f08-output-is-counted": "counts what the keeper has got, which is the same code",
	"f23-full-disk-forks":   "counts with the room that forks of an interpreter take; gvisor/full-disk does with that of copies",
	"fork-talks":            "what lies in /run can be forked; live-shapes has connections of copies",
	"template-network":      "copies have the placeholder that their memory has, and not one each",
	"policy":                "nothing of it runs in a cell",
	"policy-replay":         "nothing of it runs in a cell",
	"f66-policy-errors":     "nothing of it runs in a cell",
	"f22-one-place":         "nothing of it runs in a cell",
	"base-after-power-loss": "is about the host's files",
	"git-identity":          "is about the host's files",
	"toolchain-pyenv":       "toolchain-venv shows that mounts of toolchains are there",
	"toolchain-uv":          "toolchain-venv shows that mounts of toolchains are there",
	"g57-hostile-images":    "nothing of it runs in a cell",
}

// seldomOnGvisor hold, take long, and are for soak.
var seldomOnGvisor = []string{"toolchain-go", "toolchain-npm-nvm", "toolchain-cargo", "f30-output-of-evaluations", "eval-java", "long-chains", "d40-removed-in-use", "e49-time-outs", "f68-approvals-bind"}

func TestScriptsOnGvisor(t *testing.T) {
	if !hasGvisor() {
		t.Skip("needs bin/pando-runsc and bin/pando-guest: make")
	}
	all, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	soak := os.Getenv("E2E_SOAK") != ""
	known := map[string]bool{}
	var files []string
	for i, f := range all {
		name := strings.TrimSuffix(filepath.Base(f), ".txt")
		known[name] = true
		switch {
		case notOnGvisor[name] != "", !soak && slices.Contains(seldomOnGvisor, name):
		case i%2 > 0 && os.Getuid() != 0 && !soak: // root has run all of them
		default:
			files = append(files, f)
		}
	}
	for name := range notOnGvisor {
		if !known[name] {
			t.Errorf("there is no script %s", name)
		}
	}
	for _, name := range seldomOnGvisor {
		if !known[name] || notOnGvisor[name] != "" {
			t.Errorf("%s is no script, or one that is not run at all", name)
		}
	}
	own, err := filepath.Glob("testdata/gvisor/*.txt") // what only they can do
	if err != nil {
		t.Fatal(err)
	}
	runScripts(t, testscript.Params{Files: append(files, own...)}, map[string]string{"PANDO_BACKEND": "gvisor"})
}
