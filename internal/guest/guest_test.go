package guest

import "testing"

func TestCommands(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		exit, out, errs := b.run(t, sh("a", "cat; echo $$; id -u; echo no >&2; grep -E 'Cap|NoNew' /proc/self/status; cat /proc/self/cgroup; ps ax; exit 3"), "hello\n")
		t.Logf("%+v\n%s\n%s", exit, out, errs)
	})
}
