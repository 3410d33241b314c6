package e2b

import "testing"

func TestAllowsImage(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		pattern, name string
		want          bool
	}{
		{"python", "python:3", true},
		{"docker.io/library/python", "python:3.12-slim", true},
		{"docker.io/library/python:3", "python:2", true}, // a repository is meant
		{"python", "pythonic", false},
		{"ghcr.io/me/*", "ghcr.io/me/app:1", true},
		{"ghcr.io/me/*", "ghcr.io/mean/app:1", false},
		{"*", "quay.io/x/y", true},
		{"", "python", false},
		{"/srv/image", "python", false},
	} {
		ref, err := imageOf(x.name)
		if err != nil {
			t.Fatal(err)
		}
		if got := allowsImage([]string{x.pattern}, ref); got != x.want {
			t.Errorf("%q allows %s: %v", x.pattern, x.name, got)
		}
	}
	for _, p := range []string{"/etc/x.tar", "./layout", "saved.tar"} {
		if _, err := imageOf(p); err == nil {
			t.Errorf("%s is an image", p)
		}
	}
}
