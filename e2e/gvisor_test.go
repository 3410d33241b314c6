package e2e

import "testing"

// notOnGvisor are the scripts that are not run again with gVisor cells, each with the
// reason. All others are: what was promised of cells does not depend on what they run
// on, and where it does a line of the script says so ([gvisor], or [whole] where cells are
// copied whole).
var notOnGvisor = map[string]string{
	"bench":                         "has one of its own",
	"soak-forks":                    "ten thousand forks have ten thousand kernels",
	"f08-output-is-counted":         "counts what the keeper has got, which is the same code",
	"branch-run-again":              "is about layers in memory of interpreters that are forked; run-directory has /run of copies",
	"f23-full-disk-forks":           "counts with the room that forks of an interpreter take; whole/full-disk does with that of copies",
	"fork-talks":                    "run-directory has what lies in /run; live-shapes has connections of copies",
	"template-network":              "copies have the placeholder that their memory has, and not one each",
	"policy":                        "is about what a policy says, and not about who keeps to it",
	"policy-replay":                 "is about what a policy says",
	"f66-policy-errors":             "is about what a policy says",
	"f22-one-place":                 "is about where the state lies",
	"base-after-power-loss":         "is about the host's files",
	"git-identity":                  "is about the host's files",
	"toolchain-pyenv":               "toolchain-venv shows that mounts of toolchains are there",
	"toolchain-uv":                  "toolchain-venv shows that mounts of toolchains are there",
	"g57-hostile-images":            "is about unpacking, which is the same code",
	"x15-branches-keep-locks":       "is about what a fork of processes loses; copies of kernels lose none of it",
	"x16-descriptors-are-foreseen":  "counts the descriptors of forks of an interpreter",
	"x18-disk-of-forks":             "branches a cell with a limit on its disk; what it counts is of an interpreter that is forked",
	"x18-generators-are-named":      "names what an interpreter that is forked inherits; whole/x18-generators-are-named does with copies",
	"x18-hints-lead-on":             "is about refusals that cells which are copied whole do not have",
	"x18-many-cells":                "makes forty cells at once, each with a kernel of its own",
	"checkpoints-copy-what-changed": "is about checkpoints of files alone; these have memory too",
}

// oftenOnGvisor are those, and of gVisor's own, that every change must pass. The others
// hold, and are for soak: all of them together take longer than everything else.
var oftenOnGvisor = []string{"run", "run-directory", "terminal", "terminal-offsets", "acts-in-a-run", "denied-programs", "network", "f15-restore-proven-from-inside", "f25-liveness-is-a-held-lock", "f64-masks", "f65-no-enforcement-no-start", "escape-held-disk", "whole/ceilings-of-copies", "whole/live-python", "whole/memory-restored", "whole/x18-memory-is-marked", "whole/x09-renewed", "whole/x48-stopped-stays-stopped"}

func TestScriptsOnGvisor(t *testing.T) {
	if !hasGvisor() {
		t.Skip("needs bin/pando-runsc and bin/pando-guest: make")
	}
	again{backend: "gvisor", not: notOnGvisor, often: oftenOnGvisor, own: []string{"whole/*", "gvisor/*"}}.run(t)
}
