package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
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

// TestE2BTemplateIsReadyWhenItSaysSo: a sandbox that is asked for in the moment in which the build
// of a template says that it is ready has what its steps wrote.
func TestE2BTemplateIsReadyWhenItSaysSo(t *testing.T) {
	t.Parallel()
	const often = 3 * time.Millisecond // 500 requests a second are the limit of a token
	h := newHost(t)
	s := serving(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), 4*testenv.Patience())
	defer cancel()
	ask := asksE2B(ctx, t, s.URLs[0], secret(t, h, "run"))
	builtByE2B(t, ask, "first", "fromTemplate", "base", often, "echo first > made")
	for i := range 5 {
		name := fmt.Sprintf("next-%d", i)
		builtByE2B(t, ask, name, "fromTemplate", "first", often, "echo "+name+" >> made")
		var box e2bBox
		ask("POST", "/v2/sandboxes", map[string]any{"templateID": name, "timeout": 300}, &box)
		if got, want := saidInE2B(ctx, t, s.URLs[0], box, "cat made 2>&1"), "first\n"+name+"\n"; got != want {
			t.Errorf("a sandbox of %s says %q, want %q", name, got, want)
		}
		ask("DELETE", "/sandboxes/"+box.SandboxID, nil, nil)
	}
}

// TestE2BTemplateThatIsRemovedStaysRemoved: what is removed while its steps run does not come back
// when they end.
func TestE2BTemplateThatIsRemovedStaysRemoved(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	s := serving(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), 4*testenv.Patience())
	defer cancel()
	key := secret(t, h, "run")
	ask := asksE2B(ctx, t, s.URLs[0], key)
	builtByE2B(t, ask, "first", "fromTemplate", "base", 10*time.Millisecond, "echo first > made")
	var begun struct{ TemplateID, BuildID string }
	ask("POST", "/v3/templates", map[string]any{"name": "second"}, &begun)
	build := "/templates/" + begun.TemplateID + "/builds/" + begun.BuildID
	ask("POST", "/v2"+build, map[string]any{"fromTemplate": "first", "steps": []any{map[string]any{"type": "RUN", "args": []string{"sleep 2", "root"}}}}, nil)
	ask("DELETE", "/templates/"+begun.TemplateID, nil, nil)
	answer := func(method, path, body string) string {
		r, err := http.NewRequestWithContext(ctx, method, s.URLs[0]+path, strings.NewReader(body))
		must(t, err)
		r.Header.Set("X-Api-Key", key)
		resp, err := http.DefaultClient.Do(r)
		must(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		must(t, err)
		return fmt.Sprint(resp.StatusCode, " ", string(b))
	}
	told := func() string { return answer("GET", build+"/status", "") } // a build without a template is not found until it has failed
	testenv.Eventually(t, func() bool { return strings.Contains(told(), `"status":"error"`) }, "the end of the build")
	var list []struct{ Aliases []string }
	ask("GET", "/templates", nil, &list)
	for _, l := range list {
		if len(l.Aliases) > 0 && l.Aliases[0] == "second" {
			t.Errorf("the template is listed: %v", list)
		}
	}
	if got := answer("POST", "/v2/sandboxes", `{"templateID": "second", "allow_internet_access": false}`); !strings.HasPrefix(got, "404 ") {
		t.Errorf("a sandbox of it, without network: %s", got)
	}
}

// TestE2BBuildThatEndedWithItsDaemonLeavesNothing: the cell of a build that can't end is removed when the
// front is there again.
func TestE2BBuildThatEndedWithItsDaemonLeavesNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	s := serving(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), 4*testenv.Patience())
	defer cancel()
	ask := asksE2B(ctx, t, s.URLs[0], secret(t, h, "run"))
	builtByE2B(t, ask, "whole", "fromTemplate", "base", 10*time.Millisecond, "true")
	kept := h.cells()
	var begun struct{ TemplateID, BuildID string }
	ask("POST", "/v3/templates", map[string]any{"name": "half"}, &begun)
	ask("POST", "/v2/templates/"+begun.TemplateID+"/builds/"+begun.BuildID, map[string]any{"fromTemplate": "base", "steps": []any{map[string]any{"type": "RUN", "args": []string{"sleep 300", "root"}}}}, nil)
	testenv.Eventually(t, func() bool { return len(h.cells()) > len(kept) }, "a cell of the build")
	h.killDaemon() // serve starts another
	testenv.Eventually(t, func() bool { left := h.cells(); return len(left) == len(kept) && left[0].ID == kept[0].ID }, "the end of the build's cell")
}

// asksE2B returns a function that makes requests as E2B's clients do; an answer goes to out, which
// may be nil.
func asksE2B(ctx context.Context, t *testing.T, url, key string) func(method, path string, body, out any) {
	return func(method, path string, body, out any) {
		t.Helper()
		b, err := json.Marshal(body)
		must(t, err)
		r, err := http.NewRequestWithContext(ctx, method, url+path, bytes.NewReader(b))
		must(t, err)
		resp := done(t, http.DefaultTransport, r, "X-Api-Key", key, "Content-Type", "application/json")
		if out != nil {
			must(t, json.NewDecoder(resp.Body).Decode(out))
		}
	}
}

// builtByE2B builds a template of one step, and asks how far it is after each pause.
func builtByE2B(t *testing.T, ask func(method, path string, body, out any), name, from, what string, pause time.Duration, step string) {
	t.Helper()
	var begun struct{ TemplateID, BuildID string }
	ask("POST", "/v3/templates", map[string]any{"name": name}, &begun)
	ask("POST", "/v2/templates/"+begun.TemplateID+"/builds/"+begun.BuildID, map[string]any{
		from: what, "steps": []any{map[string]any{"type": "RUN", "args": []string{step, "root"}}},
	}, nil)
	var now struct {
		Status string
		Reason struct{ Message string }
	}
	for now.Status != "ready" { // the context of ask bounds it
		time.Sleep(pause)
		ask("GET", "/templates/"+begun.TemplateID+"/builds/"+begun.BuildID+"/status", nil, &now)
		if now.Status == "error" {
			t.Fatalf("the build of %s failed: %s", name, now.Reason.Message)
		}
	}
}

// saidInE2B is what a shell writes in a sandbox.
func saidInE2B(ctx context.Context, t *testing.T, url string, box e2bBox, script string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, "POST", url+"/process.Process/Start", strings.NewReader(startMessage("/bin/bash", "-c", script)))
	must(t, err)
	b, err := io.ReadAll(done(t, http.DefaultTransport, r, append(box.header(), "Content-Type", "application/connect+json")...).Body)
	must(t, err)
	return connectOutput(b)
}

// connectOutput is what a process wrote, of the messages of its stream.
func connectOutput(b []byte) string {
	var all strings.Builder
	for len(b) > 5 {
		n := int(b[1])<<24 | int(b[2])<<16 | int(b[3])<<8 | int(b[4])
		var m struct {
			Event struct {
				Data struct{ Stdout, Stderr []byte }
			}
		}
		if json.Unmarshal(b[5:min(5+n, len(b))], &m) == nil {
			all.Write(m.Event.Data.Stdout)
			all.Write(m.Event.Data.Stderr)
		}
		b = b[min(5+n, len(b)):]
	}
	return all.String()
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
