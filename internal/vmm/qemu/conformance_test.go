package qemu

import (
	"testing"

	"github.com/pando-dev/pando/internal/testenv"
	"github.com/pando-dev/pando/internal/vmm"
	"github.com/pando-dev/pando/internal/vmm/vmmtest"
)

func TestConformance(t *testing.T) {
	testenv.Program(t, "qemu-system-x86_64")
	vmmtest.Run(t, &Driver{}, vmm.Emulated)
}

func BenchmarkMachine(b *testing.B) {
	testenv.Program(b, "qemu-system-x86_64")
	vmmtest.Bench(b, &Driver{}, vmm.Emulated)
}
