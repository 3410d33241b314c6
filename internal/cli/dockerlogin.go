package cli

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
)

// identityUser is the user name with which credential helpers mark an identity token. The daemon
// knows it by the same name (oci.Login).
const identityUser = "<token>"

// helperLimit is the time limit of a credential helper, which may ask the user.
const helperLimit = time.Minute

const loginHint = "log in with --user NAME --password-stdin"

// dockerConfig is the part of docker's config.json that has logins.
type dockerConfig struct {
	Auths map[string]struct {
		Auth     string `json:"auth"`
		Identity string `json:"identitytoken"`
	} `json:"auths"`
	Store   string            `json:"credsStore"`
	Helpers map[string]string `json:"credHelpers"`
}

// dockerLogin reads the credentials that `docker login` has stored for the registry of an image:
// with the registry's helper program, in the file itself, or with the program for all others.
// The programs are those that the user's own configuration names.
func dockerLogin(ctx context.Context, ref string) (user, password string, err error) {
	dir := os.Getenv("DOCKER_CONFIG")
	if dir == "" {
		dir = filepath.Join(os.Getenv("HOME"), ".docker")
	}
	if !filepath.IsAbs(dir) { // the working directory may be a project's, and the file names programs
		return "", "", &api.Error{Kind: "invalid", Message: fmt.Sprintf("cannot use what docker login has stored: its directory %q is not an absolute path", dir), Hint: "set HOME, or DOCKER_CONFIG to an absolute path"}
	}
	file := filepath.Join(dir, "config.json")
	b, err := os.ReadFile(file)
	if err != nil {
		return "", "", &api.Error{Kind: "not-found", Message: "cannot use what docker login has stored: " + err.Error(), Hint: loginHint}
	}
	var conf dockerConfig
	if err := json.Unmarshal(b, &conf); err != nil {
		return "", "", &api.Error{Kind: "invalid", Message: "cannot read " + file + ": " + err.Error(), Hint: loginHint}
	}
	registry, _, ok := strings.Cut(strings.TrimPrefix(ref, "oci:"), "/")
	if !ok || !strings.ContainsAny(registry, ".:") && registry != "localhost" {
		registry = "docker.io"
	}
	for _, key := range slices.Sorted(maps.Keys(conf.Helpers)) {
		if registryOf(key) == registry {
			return askHelper(ctx, conf.Helpers[key], registry)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(conf.Auths)) {
		entry := conf.Auths[key]
		if registryOf(key) != registry {
			continue
		}
		if entry.Identity != "" {
			return identityUser, entry.Identity, nil
		}
		raw, err := base64.StdEncoding.DecodeString(entry.Auth)
		if user, password, ok = strings.Cut(strings.TrimRight(string(raw), "\x00"), ":"); err == nil && ok {
			return user, password, nil
		}
	}
	if conf.Store != "" {
		return askHelper(ctx, conf.Store, registry)
	}
	return "", "", &api.Error{Kind: "not-found", Message: fmt.Sprintf("cannot find credentials for %s in %s", registry, file), Hint: loginHint}
}

// registryOf returns the registry of a key of docker's configuration.
func registryOf(key string) string {
	host, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://"), "/")
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		return "docker.io"
	}
	return host
}

// askHelper gets credentials from a credential helper, as Docker's documentation of
// `docker login` says: the registry on standard input, JSON on standard output.
func askHelper(ctx context.Context, name, registry string) (user, password string, err error) {
	program := "docker-credential-" + name
	fail := func(kind api.Kind, format string, args ...any) error {
		return &api.Error{Kind: kind, Message: fmt.Sprintf("cannot get credentials for %s from %s: ", registry, printable(program)) + fmt.Sprintf(format, args...), Hint: loginHint}
	}
	if name == "" || strings.ContainsAny(name, "/\x00") {
		return "", "", fail("invalid", "this is no name of a program")
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return "", "", fail("not-found", "%v", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, helperLimit, fmt.Errorf("it did not answer in %v", helperLimit))
	defer cancel()
	server := registry
	if registry == "docker.io" {
		server = "https://index.docker.io/v1/"
	}
	cmd := exec.CommandContext(ctx, path, "get")
	cmd.WaitDelay = time.Second
	var said, complained limited
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(server), &said, &complained
	if err := cmd.Run(); said.over || complained.over {
		return "", "", fail("invalid", "%v", errLong)
	} else if err != nil {
		if ctx.Err() != nil {
			return "", "", fail("timeout", "%v", context.Cause(ctx))
		}
		why, _, _ := strings.Cut(cmp.Or(strings.TrimSpace(string(said.b)), strings.TrimSpace(string(complained.b)), err.Error()), "\n")
		return "", "", fail("not-found", "%s", printable(why))
	}
	var got struct{ Username, Secret string }
	if err := json.Unmarshal(said.b, &got); err != nil || got.Secret == "" || got.Username == "" {
		return "", "", fail("invalid", "its output is not what docker expects: JSON with Username and Secret")
	}
	return got.Username, got.Secret, nil
}

// limited keeps the output of a program, which ends when it exceeds 64 KiB.
type limited struct {
	b    []byte
	over bool
}

var errLong = errors.New("its output is longer than 64 KiB")

func (l *limited) Write(p []byte) (int, error) {
	if l.over = len(l.b)+len(p) > 64<<10; l.over {
		return 0, errLong
	}
	l.b = append(l.b, p...)
	return len(p), nil
}
