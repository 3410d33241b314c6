package microvm

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/isolation/guestkernel"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/linux/kvm"
	"github.com/pando-dev/pando/internal/vmm"
)

// The files of an image, in the driver's order.
const (
	imageDevices = iota // state of processors and devices
	imageMemory
	imageFiles // state of the fuseproxy
	imageBase  // file that the memory is a difference to; missing if the memory is complete
)

// baseName is the name of imageBase.
const baseName = "base"

var imageNames = []string{imageDevices: "devices", imageMemory: "memory", imageFiles: "files"}

// images describes the memory images of machines.
func (b *Backend) images() *guestkernel.Images {
	return &guestkernel.Images{Name: Name, Files: imageNames, Needs: b.needs, Brief: b.brief, Base: b.lend, Open: b.openImage}
}

// devices is the version of the machines' set of devices. A machine can only load the state of
// the same devices.
const devices = "2"

// needs returns what the saved state of devices and processors depends on. Only the same QEMU
// with the same accelerator can load it.
func (b *Backend) needs() (map[string]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, err := b.base(context.Background())
	if err != nil {
		return nil, err
	}
	needs := map[string]string{"QEMU": r.program.Version, "accelerator": string(r.accel), "devices": devices}
	if r.accel == vmm.KVM {
		needs["processor"] = kvm.Processor() // the machine has all its features
	}
	return needs, nil
}

// brief implements guestkernel.Images' Brief. Only the file of a machine's memory is large.
func (b *Backend) brief(path string, has int64) error {
	if filepath.Base(path) != imageNames[imageMemory] {
		return nil
	}
	done, err := b.memories.brief(path, has)
	if err == nil && !done {
		b.cfg.Log.Info("a machine's memory is taken by way of the disk, which takes longer: the host has too little memory", "machine", has)
	}
	return err
}

// lend implements guestkernel.Images' Base.
func (b *Backend) lend(dir string, base *os.File) error {
	return b.memories.lend(filepath.Join(dir, baseName), base)
}

// openImage opens an image's files for a copy.
func (b *Backend) openImage(dir string) (files []*os.File, err error) {
	names := imageNames
	if _, err := os.Lstat(filepath.Join(dir, baseName)); err == nil {
		names = append(slices.Clip(names), baseName)
	}
	for i, name := range names {
		var f *os.File
		if path := filepath.Join(dir, name); i == imageMemory || i == imageBase {
			f, err = b.memories.open(path)
		} else {
			f, err = os.Open(path)
		}
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// open opens the files for a cell's machine.
func (b *Backend) open(spec *cell.Spec) (o isolation.Opened, err error) {
	k, err := b.tools(context.Background(), spec.Kernel)
	if err != nil {
		return o, err
	}
	for _, path := range []string{fileKernel: k.image, fileInitramfs: k.initramfs, fileProxy: b.cfg.Guest} {
		f, err := os.Open(path)
		if err != nil {
			return o, cell.Errorf(cell.Unsupported, "microvm.Create", "", "cannot start a machine: %w", err)
		}
		o.Files = append(o.Files, f)
	}
	device, err := openDevice(k.accel)
	if err != nil {
		return o, cell.Errorf(cell.Unsupported, "microvm.Create", "`pando doctor` says what works on this machine", "cannot start a machine: %w", err)
	}
	o.Files, o.Isolation = append(o.Files, device), []string{k.isolation()}
	return o, b.images().Given(spec, &o, k.made)
}

// openDevice opens the device that runs a machine's instructions. A cell's program must be able
// to reopen it by its descriptor, and has no user ID on the host if pando runs as root. So as
// root it is opened through a private device node.
func openDevice(accel vmm.Accel) (*os.File, error) {
	switch {
	case accel != vmm.KVM:
		return os.Open(os.DevNull)
	case os.Geteuid() == 0:
		return linux.OpenNode(kvm.Device)
	}
	return os.OpenFile(kvm.Device, os.O_RDWR, 0)
}
