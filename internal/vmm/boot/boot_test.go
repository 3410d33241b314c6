package boot

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// host is a host with kernels.
type host struct {
	*testing.T
	images, modules string
}

func newHost(t *testing.T) *host {
	h := &host{t, filepath.Join(t.TempDir(), "boot"), filepath.Join(t.TempDir(), "modules")}
	h.write(filepath.Join(h.images, "config-9.9"), nil)
	return h
}

func (h *host) write(path string, b []byte) {
	h.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		h.Fatal(err)
	}
}

// kernel puts a kernel there that has virtio built in.
func (h *host) kernel(version string) *Kernel {
	image := make([]byte, 0x300, 0x400)
	copy(image[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(image[0x20e:], 0x100)
	image = append(image, version+" (builder@host) #1 SMP\x00"...)
	k := &Kernel{version, filepath.Join(h.images, "vmlinuz-"+version), filepath.Join(h.modules, version)}
	h.write(k.Image, image)
	h.write(filepath.Join(k.Modules, "modules.builtin"), []byte("kernel/drivers/virtio/virtio-core.ko\nkernel/fs/ext4/ext4.ko\n"))
	return k
}

// module puts a module there and returns its content.
func (h *host) module(k *Kernel, path string, depends ...string) []byte {
	b := object("license=GPL\x00depends=" + strings.Join(depends, ",") + "\x00name=x\x00")
	var to bytes.Buffer
	var w io.WriteCloser
	var err error
	switch filepath.Ext(path) {
	case ".gz":
		w = gzip.NewWriter(&to)
	case ".xz":
		w, err = xz.NewWriter(&to)
	case ".zst":
		w, err = zstd.NewWriter(&to)
	default:
		to.Write(b)
	}
	if err != nil {
		h.Fatal(err)
	}
	if w != nil {
		w.Write(b)
		w.Close()
	}
	h.write(filepath.Join(k.Modules, path), to.Bytes())
	return b
}

// object is an ELF file with the section .modinfo.
func object(info string) []byte {
	const names = "\x00.modinfo\x00.shstrtab\x00"
	b := binary.LittleEndian.AppendUint64([]byte("\x7fELF\x02\x01\x01\x00"), 0)
	le := binary.LittleEndian
	b = le.AppendUint16(le.AppendUint16(b, 1), 62) // relocatable, x86-64
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(le.AppendUint64(b, 0), 0)
	b = le.AppendUint64(b, uint64(64+len(info)+len(names))) // section headers
	b = le.AppendUint32(b, 0)
	for _, n := range []uint16{64, 0, 0, 64, 3, 2} {
		b = le.AppendUint16(b, n)
	}
	b = append(append(b, info...), names...)
	section := func(name, kind uint32, at, size int) {
		b = le.AppendUint32(le.AppendUint32(b, name), kind)
		for _, n := range []int{0, 0, at, size} {
			b = le.AppendUint64(b, uint64(n))
		}
		b = append(b, make([]byte, 24)...)
	}
	section(0, 0, 0, 0)
	section(1, 1, 64, len(info))
	section(10, 3, 64+len(info), len(names))
	return b
}

func TestFindsTheBestKernel(t *testing.T) {
	h := newHost(t)
	_, err := Find(h.images, h.modules)
	if cell.KindOf(err) != cell.NotFound || !strings.Contains(cell.HintOf(err), "linux-image-cloud-amd64") {
		t.Errorf("without a kernel: %v (%s), hint %q", err, cell.KindOf(err), cell.HintOf(err))
	}
	for _, x := range []struct{ add, best string }{
		{"6.1.0-9-amd64", "6.1.0-9-amd64"},
		{"6.1.0-10-amd64", "6.1.0-10-amd64"}, // ten is more than nine
		{"5.10.0-1-cloud-amd64", "5.10.0-1-cloud-amd64"},
		{"6.12.1-amd64", "5.10.0-1-cloud-amd64"},
		{"5.10.0-2-cloud-amd64", "5.10.0-2-cloud-amd64"},
	} {
		h.kernel(x.add)
		k, err := Find(h.images, h.modules)
		if err != nil {
			t.Fatal(err)
		}
		if k.Version != x.best || k.Image != filepath.Join(h.images, "vmlinuz-"+x.best) || k.Modules != filepath.Join(h.modules, x.best) {
			t.Errorf("with %s the best is %+v, want %s", x.add, k, x.best)
		}
	}
	if err := os.RemoveAll(filepath.Join(h.modules, "5.10.0-2-cloud-amd64")); err != nil {
		t.Fatal(err)
	}
	if k, err := Find(h.images, h.modules); err != nil || k.Version != "5.10.0-1-cloud-amd64" {
		t.Errorf("without the best one's modules: %+v, %v", k, err)
	}
}

// Kernels lie where distributions put them, are called as those call them, and count
// with the modules that are needed.
func TestFindsKernelsByTheirPackages(t *testing.T) {
	for _, c := range []struct {
		name, version, image string // below a directory of images or modules
		want                 bool
	}{
		{"Debian's and Ubuntu's", "6.8.0-45-generic", "boot/vmlinuz-6.8.0-45-generic", true},
		{"Fedora's, beside its modules", "6.15.2-200.fc42.x86_64", "modules/6.15.2-200.fc42.x86_64/vmlinuz", true},
		{"Arch's, by its flavour", "6.15.2-arch1-1", "boot/vmlinuz-linux", true},
		{"without the modules", "6.1.0-9-amd64", "boot/vmlinuz-6.1.0-9-amd64", false},
	} {
		h := newHost(t)
		k := h.kernel(c.version)
		image := filepath.Join(filepath.Dir(h.images), c.image)
		if top, rest, _ := strings.Cut(c.image, "/"); top == "modules" {
			image = filepath.Join(h.modules, rest)
		}
		if image != k.Image {
			if err := os.Rename(k.Image, image); err != nil {
				t.Fatal(err)
			}
		}
		if c.want {
			h.module(k, "kernel/fs/fuse/fuse.ko.xz")
		}
		got, err := Find(h.images, h.modules, "virtio-core", "fuse")
		switch {
		case c.want && (err != nil || *got != Kernel{c.version, image, k.Modules}):
			t.Errorf("%s: %+v, %v", c.name, got, err)
		case !c.want && (cell.KindOf(err) != cell.NotFound || !strings.Contains(err.Error(), "no module fuse")):
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
		if !c.want { // another one does, although it is older
			old := h.kernel("5.10.0-1-amd64")
			h.module(old, "kernel/fs/fuse/fuse.ko")
			if got, err := Find(h.images, h.modules, "fuse"); err != nil || *got != *old {
				t.Errorf("%s, and an older one with them: %+v, %v", c.name, got, err)
			}
		}
	}
}

func TestFindSaysThatAKernelMayNotBeRead(t *testing.T) {
	testenv.User(t)
	h := newHost(t)
	k := h.kernel("6.1.0-9-amd64")
	if err := os.Chmod(k.Image, 0); err != nil {
		t.Fatal(err)
	}
	_, err := Find(h.images, h.modules)
	if cell.KindOf(err) != cell.Denied || !strings.Contains(cell.HintOf(err), "chmod a+r "+k.Image) {
		t.Errorf("a kernel for root alone: %v (%s), hint %q", err, cell.KindOf(err), cell.HintOf(err))
	}
}

func TestOpenRefusesWhatIsNoKernel(t *testing.T) {
	h := newHost(t)
	k := h.kernel("6.1.0-9-amd64")
	modulesHint, err := os.ReadFile(k.Image)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"unmarked": strings.Replace(string(modulesHint), "HdrS", "Head", 1), "empty": "", "text": strings.Repeat("no kernel ", 1000), "path": strings.Repeat("\x00", 0x202) + "HdrS" + strings.Repeat("\x00", 10) + "../../etc x"} {
		image := filepath.Join(h.images, name)
		h.write(image, []byte(content))
		if _, err := Open(image, k.Modules); cell.KindOf(err) != cell.Invalid {
			t.Errorf("%s is %v, want %s", name, err, cell.Invalid)
		}
	}
	if _, err := Open(k.Image, filepath.Join(h.modules, "none")); cell.KindOf(err) != cell.NotFound {
		t.Errorf("without modules: %v, want %s", err, cell.NotFound)
	}
}

func TestModulesComeBehindWhatTheyDependOn(t *testing.T) {
	h := newHost(t)
	k := h.kernel("6.1.0-9-amd64")
	h.module(k, "kernel/drivers/net/virtio_net.ko.xz", "virtio_ring", "virtio-core", "net_failover")
	want := h.module(k, "kernel/drivers/net/net_failover.ko.zst", "failover")
	h.module(k, "kernel/net/core/failover.ko.gz")
	h.module(k, "kernel/drivers/virtio/virtio_ring.ko")
	h.module(k, "kernel/drivers/char/hw_random/virtio-rng.ko", "virtio_ring")
	link := k.Modules + "-link"
	if err := os.Symlink(k.Modules, link); err != nil {
		t.Fatal(err)
	}
	got, err := (&Kernel{k.Version, k.Image, link}).Load("virtio_net", "virtio_rng", "ext4", "virtio-net")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range got {
		names = append(names, m.Name)
	}
	if w := []string{"virtio_ring", "failover", "net_failover", "virtio_net", "virtio_rng"}; !slices.Equal(names, w) {
		t.Fatalf("the order is %v, want %v", names, w)
	}
	if !bytes.Equal(got[2].Data, want) {
		t.Error("a module is not what was compressed")
	}
	if _, err := k.Load("fuse"); cell.KindOf(err) != cell.NotFound || !strings.Contains(err.Error(), "fuse") {
		t.Errorf("a module that isn't there: %v, want %s", err, cell.NotFound)
	}
	h.write(filepath.Join(k.Modules, "kernel/fs/fuse/fuse.ko"), []byte("no module"))
	if _, err := k.Load("fuse"); err == nil {
		t.Error("a file that is no module is taken for one")
	}
}

func TestInitramfsIsAnArchiveOfTheKernels(t *testing.T) {
	var out, again bytes.Buffer
	modules := []Module{{"virtio", []byte("one")}, {"virtio_ring", []byte("eight by")}}
	for _, w := range []io.Writer{&out, &again} {
		if err := Write(w, []byte("program"), modules); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Error("the same content makes different archives")
	}
	type file struct {
		name         string
		mode         uint64
		major, minor uint64
		data         string
	}
	var got []file
	for b := out.Bytes(); ; {
		field := func(i int) uint64 {
			n, err := strconv.ParseUint(string(b[6+8*i:14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		if string(b[:6]) != "070701" {
			t.Fatalf("a head begins with %q", b[:6])
		}
		size, name := int(field(6)), int(field(11))
		at := (110 + name + 3) &^ 3
		f := file{string(b[110 : 110+name-1]), field(1), field(9), field(10), string(b[at : at+size])}
		if b[110+name-1] != 0 {
			t.Fatalf("the name %s does not end", f.name)
		}
		b = b[(at+size+3)&^3:]
		if f.name == "TRAILER!!!" {
			if len(b) != 0 {
				t.Errorf("%d bytes follow the end", len(b))
			}
			break
		}
		got = append(got, f)
	}
	want := []file{{"dev", 0o040755, 0, 0, ""}, {"dev/console", 0o020600, 5, 1, ""}, {"init", 0o100755, 0, 0, "program"}, {"modules", 0o040755, 0, 0, ""},
		{"modules/000-virtio.ko", 0o100644, 0, 0, "one"}, {"modules/001-virtio_ring.ko", 0o100644, 0, 0, "eight by"}}
	if !slices.Equal(got, want) {
		t.Errorf("the archive has %+v\nwant %+v", got, want)
	}
}
