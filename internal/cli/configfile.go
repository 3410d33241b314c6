package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/gofrs/flock"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/durable"
)

// ofUser is the origin of defaults that hold for every source.
const ofUser = "user"

// settings are defaults of flags: the values of each, by its name.
type settings map[string][]string

// A config is the file with a user's defaults. Sources has those of one source each, by its
// real path: what is in a source never says what its defaults are.
type config struct {
	Version int                 `json:"version"`
	User    settings            `json:"user,omitempty"`
	Sources map[string]settings `json:"sources,omitempty"`
}

// maxConfig bounds what is read of the file.
const maxConfig = 1 << 20

// outside refuses defaults for a source that their file lies in: a cell's changes are applied
// there.
func (a *app) outside(source string) error {
	dir, err := filepath.EvalSymlinks(filepath.Dir(a.home.Config()))
	if err != nil || dir != source && !strings.HasPrefix(dir, source+"/") {
		return err
	}
	return &api.Error{Kind: "denied", Message: fmt.Sprintf("cannot use the defaults of flags: %s lies in the source %s, which may not say them", a.home.Config(), source),
		Hint: "go without them: --no-config; or keep the configuration elsewhere: PANDO_HOME, XDG_CONFIG_HOME"}
}

func (a *app) readConfig() (config, error) {
	none := config{Version: 1}
	at := a.home.Config()
	if at == "" {
		return none, nil
	}
	if _, err := os.Lstat(at); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return none, nil
	}
	const what = "read the defaults of flags"
	f, err := OpenSecretFile(what, at)
	if err != nil {
		return none, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(text) > maxConfig {
		err = fmt.Errorf("it has more than %s", size(maxConfig))
	}
	var c config
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err = d.Decode(&c); err == nil {
			err = bound.Unique(text, "the file", reflect.TypeFor[config]())
		}
	}
	if err == nil && c.Version != 1 {
		err = fmt.Errorf("version %d is not known", c.Version)
	}
	if err != nil {
		return none, &api.Error{Kind: "invalid", Message: fmt.Sprintf("cannot %s (%s): %v", what, at, err), Hint: "correct the file, or take it away and set them again with pando config set"}
	}
	return c, nil
}

// level returns the defaults of an origin; they are made where there are none.
func (c *config) level(of string) settings {
	if of == ofUser {
		if c.User == nil {
			c.User = settings{}
		}
		return c.User
	}
	if c.Sources == nil {
		c.Sources = map[string]settings{}
	}
	if c.Sources[of] == nil {
		c.Sources[of] = settings{}
	}
	return c.Sources[of]
}

// list returns the defaults of some origins, in their order and sorted by key.
func (c *config) list(origins ...string) []api.Default {
	out := []api.Default{}
	for _, of := range origins {
		s := c.Sources[of]
		if of == ofUser {
			s = c.User
		}
		for _, key := range slices.Sorted(maps.Keys(s)) {
			out = append(out, api.Default{Key: key, Values: s[key], Of: of})
		}
	}
	return out
}

// lockConfig makes the folder of the file, and waits until no other process changes the file. The lock is a
// file of its own, since each change replaces the other one.
func (a *app) lockConfig() (unlock func() error, err error) {
	at := a.home.Config()
	if at == "" {
		return nil, &api.Error{Kind: "unsupported", Message: "cannot keep the defaults of flags: there is no place for a configuration", Hint: "set HOME, or PANDO_HOME"}
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		return nil, err
	}
	l := flock.New(at+".lock", flock.SetPermissions(0o600))
	if err := l.Lock(); err != nil {
		return nil, &fs.PathError{Op: "lock", Path: l.Path(), Err: err}
	}
	return l.Close, nil
}

// writeConfig writes the file, without origins that have nothing. The caller has its lock.
func (a *app) writeConfig(c config) error {
	maps.DeleteFunc(c.Sources, func(_ string, s settings) bool { return len(s) == 0 })
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	at := a.home.Config()
	return apiError(durable.WriteFile(durable.Disk(filepath.Dir(at)), filepath.Base(at), append(b, '\n'), 0o600))
}

// sourceAt returns the real path of a source; of "" that of this directory.
func (a *app) sourceAt(dir string) (string, error) {
	if dir == "" {
		dir = a.repository()
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real, nil
	}
	return abs, nil // it is gone, or the start will say what is wrong with it
}
