package overlay_test

import (
	"context"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/overlay"
	"github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// Layers that are squashed show what they showed one upon the other, above whatever lies below them.
func TestSquash(t *testing.T) {
	root := t.TempDir()
	t.Cleanup(func() { workspace.RemoveTree(root) }) // also what overlayfs lets no one enter
	p := overlay.New(root, os.Geteuid() == 0)
	ctx := context.Background()
	r := rand.New(rand.NewPCG(1, 2))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	over := func(layers []string) workspace.Generation {
		g, err := p.Begin(ctx, workspace.State{Provider: p.Name(), Layers: layers}, workspace.Entry{Type: workspace.Folder, Mode: 0o755}, "")
		must(err)
		return g
	}
	mount := func(layers []string) *workspacetest.Inside {
		return workspacetest.EnterPlain(t, p.Mount(over(layers), "/"))
	}
	look := func(layers []string) workspacetest.View {
		in := mount(layers)
		defer in.Leave()
		return in.Look()
	}
	write := func(below []string, ops ...workspacetest.Op) string {
		g := over(below)
		in := workspacetest.EnterPlain(t, p.Mount(g, "/"))
		in.Try(ops...)
		in.Leave()
		_, err := p.Freeze(ctx, g)
		must(err)
		return g.Layer
	}
	names := []string{"a", "b", "a/b", "a/b/c", "b/a", "b/a/b", "c", "c/a", "c/a/b"}
	any := func() string { return names[r.IntN(len(names))] }
	verbs := []string{"write", "write", "write", "folder", "folder", "remove", "remove", "rename", "symlink", "link", "chmod", "xattr", "append", "fifo"}
	ops := func(n int) (list []workspacetest.Op) {
		for range n {
			list = append(list, workspacetest.Op{Do: verbs[r.IntN(len(verbs))], Path: any(), To: any(), Data: string(rune('a' + r.IntN(26))), Mode: 0o700 + uint32(r.IntN(64))})
		}
		return list
	}
	empty := over(nil)
	_, err := p.Freeze(ctx, empty)
	must(err)
	for range 12 {
		host := write([]string{empty.Layer}, ops(20)...)
		stack := []string{host}
		for range 2 + r.IntN(4) {
			stack = append(stack, write(stack, ops(12)...))
		}
		one, err := p.Squash(ctx, stack[1:])
		must(err)
		if d := workspacetest.Differ(look(stack), look([]string{host, one})); d != "" {
			t.Fatalf("squashed layers show something else: %s", d)
		}
		// Above another state they do the same, too: the caller's caches may have moved on.
		other := write([]string{host}, ops(20)...)
		if d := workspacetest.Differ(look(append([]string{host, other}, stack[1:]...)), look([]string{host, other, one})); d != "" {
			t.Fatalf("above another state, squashed layers show something else: %s", d)
		}
		two, err := p.Squash(ctx, []string{other, one})
		must(err)
		if d := workspacetest.Differ(look([]string{host, other, one}), look([]string{host, two})); d != "" {
			t.Fatalf("squashed again, layers show something else: %s", d)
		}
	}
}
