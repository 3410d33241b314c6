package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
)

// What docker login has stored is used for the registry of the image, and for no
// other; no helper program is asked.
func TestDockerLogin(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	for ref, want := range map[string]string{
		"ghcr.io/me/app:1": "me:one", "oci:ghcr.io/me/app": "me:one", "python:3": "you:two:three", "docker.io/you/app": "you:two:three", "localhost:5000/a": "l:four",
		"quay.io/a/b": "", "acr.example/a": "", "ghcr.io.evil.example/a/b": "", "ghcr.io": "you:two:three",
	} {
		conf := `{"auths": {"ghcr.io": {"auth": "bWU6b25l"}, "https://index.docker.io/v1/": {"auth": "eW91OnR3bzp0aHJlZQ=="}, "http://localhost:5000": {"auth": "bDpmb3Vy"}, "quay.io": {}, "acr.example": {"auth": "MDAwOg==", "identitytoken": "abc"}}, "credsStore": "desktop"}`
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		user, password, err := dockerLogin(ref)
		got := strings.TrimSuffix(user+":"+password, ":")
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v, want %q", ref, got, err, want)
		}
		if e, ok := errors.AsType[*api.Error](err); err != nil && (!ok || e.Hint == "") {
			t.Errorf("%s: %v has no hint", ref, err)
		}
	}
}
