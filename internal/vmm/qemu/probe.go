package qemu

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/vmm"
)

// patience is the time limit for the program to print its version.
const patience = 10 * time.Second

// installHint is shown when QEMU is not installed.
const installHint = "install QEMU (Debian, Ubuntu, Arch: qemu-system-x86; Fedora: qemu-system-x86-core), or choose another backend"

// firmware are the files that start a microvm, in one of the firmware directories.
var firmware = []string{"bios-microvm.bin", "linuxboot_dma.bin", "kvmvapic.bin"}

var versionLine = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^QEMU emulator version (\S+)`) })

// Probe finds the program and the files that it reads.
func (d *Driver) Probe(ctx context.Context) (*vmm.Program, error) {
	if runtime.GOARCH != "amd64" {
		return nil, cell.Errorf(cell.Unsupported, "qemu.Probe", "choose another backend", "cannot run machines on %s: QEMU's microvm is one of x86-64", runtime.GOARCH)
	}
	name := d.Search
	if d.Find != nil {
		name = d.Find()
	}
	if name == "" {
		name = "qemu-system-x86_64"
	}
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return nil, cell.Errorf(cell.Unavailable, "qemu.Probe", installHint, "cannot find QEMU: %w", err)
	}
	p := &vmm.Program{Path: path}
	out, err := d.ask(ctx, path, nil, "--version")
	if err != nil {
		return nil, cell.Errorf(cell.Unavailable, "qemu.Probe", installHint, "cannot ask QEMU for its version: %w", err)
	}
	m := versionLine().FindSubmatch(out)
	if m == nil {
		return nil, cell.Errorf(cell.Unavailable, "qemu.Probe", installHint, "cannot use %s: it does not say its version", path)
	}
	p.Version = string(m[1])
	if p.Files, err = d.files(ctx, path); err != nil {
		return nil, err
	}
	return p, nil
}

// files lists the files that the program reads: itself, the libraries that its loader lists,
// the modules that distributions keep beside those (accelerators), and firmware.
func (d *Driver) files(ctx context.Context, path string) ([]string, error) {
	listed, err := d.ask(ctx, path, []string{"LD_TRACE_LOADED_OBJECTS=1"}) // of the loader, as in ldd
	if err != nil {
		return nil, cell.Errorf(cell.Unavailable, "qemu.Probe", installHint, "cannot ask for QEMU's libraries: %w", err)
	}
	files := append([]string{path}, libraries(listed)...)
	for _, lib := range files {
		dir := filepath.Join(filepath.Dir(lib), "qemu") // as in /usr/lib/x86_64-linux-gnu/qemu
		if found, _ := filepath.Glob(filepath.Join(dir, "accel-*.so")); len(found) > 0 && !slices.Contains(files, dir) {
			files = append(files, dir)
		}
	}
	dirs, err := d.ask(ctx, path, nil, "-L", "help")
	if err != nil {
		return nil, cell.Errorf(cell.Unavailable, "qemu.Probe", installHint, "cannot ask for QEMU's firmware: %w", err)
	}
	for _, name := range firmware {
		found := ""
		for dir := range strings.FieldsSeq(string(dirs)) {
			if f := filepath.Join(dir, name); found == "" && filepath.IsAbs(dir) {
				if _, err := os.Stat(f); err == nil {
					found = f
				}
			}
		}
		if found == "" {
			return nil, cell.Errorf(cell.Unavailable, "qemu.Probe", installHint, "cannot use QEMU: its file %s is not there", name)
		}
		files = append(files, found)
	}
	return files, nil
}

// libraries parses a loader's list: "name => path (address)", or "path (address)" for the
// loader itself.
func libraries(listed []byte) (paths []string) {
	for line := range bytes.Lines(listed) {
		for word := range bytes.FieldsSeq(line) {
			if word[0] == '/' {
				if p := filepath.Clean(string(word)); !slices.Contains(paths, p) {
					paths = append(paths, p)
				}
			}
		}
	}
	return paths
}

func (d *Driver) ask(ctx context.Context, path string, env []string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it does not answer within %v", patience))
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = env
	out, err := cmd.Output()
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out, err
}
