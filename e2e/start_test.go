package e2e

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
)

// Every command, daemon and keeper pays for package initialisation, so its allocations are
// bounded. Unlike the time, they are equal in every run.
func TestStartIsLean(t *testing.T) {
	cmd := exec.Command(built, "--version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// The protocol of agents (package mcp) takes 120 KiB of it and, measured, 0.7 ms:
	// it is in the same program so that every installation and the daemon have it.
	// Traces (package telemetry, with the encoding of OpenTelemetry's protocol) take
	// 36 KiB and 0.2 ms. Kernel modules that are packed with xz (package vmm/boot) take
	// 33 KiB and 0.04 ms, for tables of the library.
	// The emulator of terminals (package terminal, for attach) takes 27 KiB and 0.1 ms, for
	// tables of its libraries.
	const most = 460 << 10 // bytes
	sum := 0
	lines := regexp.MustCompile(`(?m)^init \S+ .* (\d+) bytes`).FindAllSubmatch(out, -1)
	for _, l := range lines {
		n, _ := strconv.Atoi(string(l[1]))
		sum += n
	}
	if len(lines) < 10 {
		t.Fatalf("no trace:\n%s", out)
	}
	if sum > most {
		t.Errorf("packages allocate %d bytes before main, at most %d are allowed: make tables and patterns when they are first needed\n%s", sum, most, out)
	}
}
