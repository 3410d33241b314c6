package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/testenv"
)

// What docker login has stored is used for the registry of the image, and for no
// other.
func TestDockerLogin(t *testing.T) {
	dockerConf(t, `{"auths": {"ghcr.io": {"auth": "bWU6b25l"}, "https://index.docker.io/v1/": {"auth": "eW91OnR3bzp0aHJlZQ=="}, "http://localhost:5000": {"auth": "bDpmb3Vy"}, "quay.io": {},
		"acr.example": {"auth": "MDAwOg==", "identitytoken": "abc"}, "https://late.example/v2/": {"identitytoken": "def"}}, "credsStore": "desktop"}`)
	for ref, want := range map[string]string{
		"ghcr.io/me/app:1": "me:one", "oci:ghcr.io/me/app": "me:one", "python:3": "you:two:three", "docker.io/you/app": "you:two:three", "localhost:5000/a": "l:four",
		"quay.io/a/b": "", "acr.example/a": "<token>:abc", "late.example/a": "<token>:def", "ghcr.io.evil.example/a/b": "", "ghcr.io": "you:two:three",
	} {
		user, password, err := dockerLogin(t.Context(), ref)
		got := strings.TrimSuffix(user+":"+password, ":")
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v, want %q", ref, got, err, want)
		}
		if e, ok := errors.AsType[*api.Error](err); err != nil && (!ok || e.Hint == "") {
			t.Errorf("%s: %v has no hint", ref, err)
		}
	}
}

// A directory that the working directory decides would let a project choose a program.
func TestDockerLoginNeedsAnAbsoluteDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, d := range []string{".docker", "sub/.docker"} {
		if err := errors.Join(os.MkdirAll(d, 0o755), os.WriteFile(filepath.Join(d, "config.json"), []byte(`{"auths": {"ghcr.io": {"auth": "bWU6b25l"}}}`), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, env := range [][2]string{{"", ""}, {"", "."}, {"", "sub"}, {".docker", "/"}, {"sub/.docker", ""}} {
		t.Setenv("DOCKER_CONFIG", env[0])
		t.Setenv("HOME", env[1])
		user, _, err := dockerLogin(t.Context(), "ghcr.io/a")
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Kind != "invalid" || e.Hint == "" || user != "" {
			t.Errorf("DOCKER_CONFIG=%s HOME=%s: %q, %v", env[0], env[1], user, err)
		}
	}
}

// dockerConf writes docker's configuration for this test into dir, which is the test's PATH, too.
func dockerConf(t *testing.T, conf string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	t.Setenv("PATH", dir)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// helper makes a credential helper of a shell script.
func helper(t *testing.T, dir, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "docker-credential-"+name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
}

// A registry's helper goes before what the file has, and the helper for all others after it.
func TestCredentialHelpers(t *testing.T) {
	dir := dockerConf(t, `{"auths": {"ghcr.io": {"auth": "bWU6b25l"}, "gcr.io": {"auth": "bWU6b25l"}}, "credHelpers": {"gcr.io": "g", "https://bad.example": "../evil", "empty.example": ""}, "credsStore": "store"}`)
	helper(t, dir, "g", `read s; test "$1" = get && echo '{"ServerURL":"x","Username":"<token>","Secret":"for '$s'"}'`)
	helper(t, dir, "store", `read s
case "$s" in
none.example) echo "credentials not found in native keychain"; echo noise >&2; exit 1 ;;
mute.example) exit 3 ;;
half.example) echo '{"Username":"me"}' ;;
long.example) while :; do echo 0123456789012345678901234567890123456789; done ;;
just-long.example) i=0; while [ $i -lt 7000 ]; do echo 0123456789; i=$((i+1)); done ;;
*) echo '{"Username":"me","Secret":"'$s'"}' ;;
esac`)
	for ref, want := range map[string]string{
		"gcr.io/a": "<token>:for gcr.io", "ghcr.io/a": "me:one", "quay.io/a/b": "me:quay.io", "busybox": "me:https://index.docker.io/v1/",
		"none.example/a": "not-found: credentials not found in native keychain", "mute.example/a": "not-found: exit status 3", "half.example/a": "invalid: its output is not",
		"long.example/a": "invalid: its output is longer", "just-long.example/a": "invalid: its output is longer", "bad.example/a": "invalid: this is no name", "empty.example/a": "invalid: this is no name",
	} {
		user, password, err := dockerLogin(t.Context(), ref)
		if err == nil {
			if got := user + ":" + password; got != want {
				t.Errorf("%s: %q, want %q", ref, got, want)
			}
			continue
		}
		e, ok := errors.AsType[*api.Error](err)
		kind, text, _ := strings.Cut(want, ": ")
		if !ok || e.Hint == "" || string(e.Kind) != kind || !strings.Contains(e.Message, text) || strings.Contains(e.Message, "012345") {
			t.Errorf("%s: %+v, want %q", ref, e, want)
		}
	}
}

// A helper that does not answer ends with what asked it.
func TestCredentialHelpersEnd(t *testing.T) {
	dir := dockerConf(t, `{"credsStore": "slow"}`)
	helper(t, dir, "slow", `echo >"`+dir+`/begun"; while :; do :; done`)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, _, err := dockerLogin(ctx, "quay.io/a")
		done <- err
	}()
	testenv.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(dir, "begun")); return err == nil }, "the helper's begin")
	cancel()
	if err, _ := testenv.Receive(t, done, "the end"); err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Error(err)
	}
}
