package engine

import "testing"

func TestKernelPathsAreTheCallers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ asked, dir, want string }{
		{"", "/home/u", ""},
		{"/boot/vmlinuz-6.1", "/home/u", "/boot/vmlinuz-6.1"},
		{"bzImage", "/home/u", "/home/u/bzImage"},
		{"../bzImage:lib/modules/6.1", "/home/u", "/home/bzImage:/home/u/lib/modules/6.1"},
		{"bzImage", "", "bzImage"}, // it is not known where; the backend refuses it
	} {
		if got := kernelAt(c.asked, c.dir); got != c.want {
			t.Errorf("%q in %q is %q, want %q", c.asked, c.dir, got, c.want)
		}
	}
}
