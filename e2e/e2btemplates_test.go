package e2e

import (
	"bytes"
	"context"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	imageregistry "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/pando-dev/pando/internal/testenv"
)

// TestE2BTemplates: E2B's package builds templates of copied files; a step's output is
// told while it runs.
func TestE2BTemplates(t *testing.T) {
	rootHasRunIt(t)
	node, npm := testenv.Program(t, "node"), testenv.Program(t, "npm")
	reachable(t, "https://registry.npmjs.org/is-odd/3.0.1")
	t.Parallel()
	runE2BProgram(t, node, npmInstall(t, npm, e2bNewest...), newHost(t), "e2b/templates.mjs", nil)
}

// runE2BProgram runs a program for E2B against a daemon of its own.
func runE2BProgram(t *testing.T, node, packages string, h *host, script string, env []string, flags ...string) {
	t.Helper()
	script, err := filepath.Abs(script)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, node, script)
	c.Env = append(append(append(os.Environ(), serveE2B(t, h, flags...)...), "PACKAGES="+packages), env...)
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", script, err, out)
	}
}

// TestE2BImages: templates begin with an image that the operator allows, and with one
// another; what their steps write to the image is in their sandboxes, and stays when
// the template's cell is gone.
func TestE2BImages(t *testing.T) {
	rootHasRunIt(t)
	node, npm := testenv.Program(t, "node"), testenv.Program(t, "npm")
	testenv.Program(t, "busybox")
	reachable(t, "https://registry.npmjs.org/is-odd/3.0.1")
	t.Parallel()
	srv := httptest.NewServer(imageregistry.New(imageregistry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	registry := strings.TrimPrefix(srv.URL, "http://")
	for _, repo := range []string{"team/app", "other/app"} {
		if err := pushTo(registry, busyboxImage(t), repo, "1"); err != nil {
			t.Fatal(err)
		}
	}
	runE2BProgram(t, node, npmInstall(t, npm, e2bNewest...), newHost(t), "e2b/images.mjs", []string{"REGISTRY=" + registry}, "--build-image", registry+"/team/*")
}

// busyboxImage is an image with busybox, and a bash that is its shell.
func busyboxImage(t *testing.T) v1.Image {
	t.Helper()
	root := t.TempDir()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(busybox)
	for _, d := range []string{"bin", "etc", "usr"} {
		if err == nil {
			err = os.Mkdir(filepath.Join(root, d), 0o755)
		}
	}
	for name, content := range map[string]string{"bin/busybox": string(program), "bin/bash": "#!/bin/sh\nexec /bin/sh \"$@\"\n", "etc/release": "the image\n"} {
		if err == nil {
			err = os.WriteFile(filepath.Join(root, name), []byte(content), 0o755)
		}
	}
	for _, p := range []string{"sh", "cat", "echo", "mkdir", "ls", "pwd", "touch", "rm"} {
		if err == nil {
			err = os.Symlink("busybox", filepath.Join(root, "bin", p))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return treeImage(t, root, "PATH=/bin", "OF_IMAGE=yes")
}

// treeImage is an image of a directory, with these variables for its commands.
func treeImage(t *testing.T, root string, env ...string) v1.Image {
	t.Helper()
	raw, err := tarTree(root)
	img := mutate.ConfigMediaType(mutate.MediaType(v1.Image(empty.Image), "application/vnd.oci.image.manifest.v1+json"), "application/vnd.oci.image.config.v1+json")
	var layer v1.Layer
	if err == nil {
		layer, err = tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil })
	}
	if err == nil {
		img, err = mutate.AppendLayers(img, layer)
	}
	var file *v1.ConfigFile
	if err == nil {
		file, err = img.ConfigFile()
	}
	if err == nil {
		file = file.DeepCopy()
		file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, v1.Config{Env: env}
		img, err = mutate.ConfigFile(img, file)
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}
