package cell

import "testing"

// A writable mount that is not the cell's own is outside, whatever its name.
func TestX07WritableMountsAreOutside(t *testing.T) {
	for _, c := range []struct {
		mount Mount
		want  bool
	}{
		{Mount{Kind: Bind, Source: "/srv/out"}, true},
		{Mount{Kind: Bind, Source: "/srv/out", ReadOnly: true}, false},
		{Mount{Kind: Bind, Source: "/state/c-1/home"}, false},
		{Mount{Kind: Bind, Source: "/state/c-1"}, false},
		{Mount{Kind: Bind, Source: "/state/c-10/home"}, true},
		{Mount{Kind: Bind, Source: "/layers/l1/fs"}, false},
		{Mount{Kind: Bind, Source: ""}, true},
		{Mount{Kind: Overlay, Upper: "/layers/l2/fs"}, false},
		{Mount{Kind: Cache, Source: "/home/u/.cache"}, false},
		{Mount{Kind: Tmpfs}, false},
	} {
		s := Spec{Private: "/state/c-1", Writes: []string{"", "/layers/l1/fs"}, Mounts: []Mount{{Kind: Bind, Source: "/usr", ReadOnly: true}, c.mount}}
		if s.WritesOutside() != c.want {
			t.Errorf("%+v: outside is %v", c.mount, !c.want)
		}
	}
}
