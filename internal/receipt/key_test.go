package receipt

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/durable/durabletest"
)

func TestKeyIsMadeOnceAndLoaded(t *testing.T) {
	fsys := durable.Disk(t.TempDir())
	a, err := OpenKey(fsys)
	must(t, err)
	b, err := OpenKey(fsys)
	must(t, err)
	public, err := LoadPublicKey(fsys)
	must(t, err)
	if a.Public().ID() != b.Public().ID() || public.ID() != a.Public().ID() {
		t.Error("the key is another one when it is loaded")
	}
	if _, err := cell.ParseDigest(a.Public().ID()); err != nil {
		t.Error(err)
	}
	sig, err := b.Sign([]byte("x"))
	if err != nil || !public.Verify([]byte("x"), sig) || public.Verify([]byte("y"), sig) || (PublicKey{}).Verify([]byte("x"), sig) {
		t.Error("signature")
	}
	infos, err := fsys.List(".")
	must(t, err)
	if fmt.Sprint(infos[0].Perm, infos[1].Perm) != "-rw------- -rw-r--r--" {
		t.Errorf("%+v", infos)
	}
}

func TestKeyOthersCanReadIsDenied(t *testing.T) {
	for _, mode := range []uint32{0o640, 0o604, 0o620, 0o601} {
		d := durabletest.New()
		_, err := OpenKey(d)
		must(t, err)
		must(t, durable.WriteFile(d, KeyFile, d.Get(KeyFile), fs.FileMode(mode)))
		if _, err := OpenKey(d); cell.KindOf(err) != cell.Denied || !strings.Contains(cell.HintOf(err), "chmod 600") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
}

func TestKeyThatIsLostIsNotReplaced(t *testing.T) {
	d := durabletest.New()
	_, err := OpenKey(d)
	must(t, err, d.Remove(KeyFile))
	if _, err := OpenKey(d); cell.KindOf(err) != cell.NotFound || cell.HintOf(err) == "" || !strings.Contains(err.Error(), KeyFile) {
		t.Errorf("%v", err)
	}
	if d.Get(KeyFile) != nil {
		t.Error("a new key was made")
	}
}

func TestKeyFilesThatAreWrong(t *testing.T) {
	other := durabletest.New()
	_, err := OpenKey(other)
	must(t, err)
	for name, c := range map[string]struct{ key, pub []byte }{
		"empty":              {key: []byte{}},
		"not PEM":            {key: []byte("hello")},
		"public as private":  {key: other.Get(PublicFile)},
		"not PKCS#8":         {key: []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")},
		"another's public":   {pub: other.Get(PublicFile)},
		"public overwritten": {pub: []byte("hello")},
	} {
		d := durabletest.New()
		_, err := OpenKey(d)
		must(t, err)
		if c.key != nil {
			d.Put(KeyFile, c.key)
		}
		if c.pub != nil {
			d.Put(PublicFile, c.pub)
		}
		if _, err := OpenKey(d); cell.KindOf(err) != cell.Corrupt {
			t.Errorf("%s: %v", name, err)
		}
	}
	other.Put(KeyFile, bytes.Repeat(other.Get(KeyFile), 2))
	if _, err := OpenKey(other); cell.KindOf(err) != cell.Corrupt {
		t.Errorf("two keys in one file: %v", err)
	}
	for _, text := range []string{"", "hello", string(other.Get(KeyFile)), "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"} {
		if _, err := ParsePublicKey([]byte(text)); cell.KindOf(err) != cell.Invalid {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Whenever the power goes during first use, the next start has a key, and one
// that was handed out is still the same.
func TestKeySurvivesPowerLoss(t *testing.T) {
	d := durabletest.New()
	var crashed []*durabletest.Disk
	d.After = func(durabletest.Call) { crashed = append(crashed, d.Crash(), d.CrashSome(1), d.CrashSome(2)) }
	k, err := OpenKey(d)
	must(t, err)
	for _, c := range crashed {
		if _, err := OpenKey(c); err != nil {
			t.Errorf("after a crash: %v", err)
		}
	}
	after, err := OpenKey(d.Crash())
	must(t, err)
	if after.Public().ID() != k.Public().ID() {
		t.Error("the key was lost after it had been handed out")
	}
}

func TestKeyNeverShowsItself(t *testing.T) {
	k := newKey(t)
	j, err := json.Marshal(map[string]any{"k": k})
	must(t, err)
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "k", k)
	//lint:ignore S1025 each verb is a way in which a key could show
	for _, s := range []string{fmt.Sprint(k), fmt.Sprintf("%+v", k), fmt.Sprintf("%#v", k), fmt.Sprintf("%s", k), string(j), log.String()} {
		if !strings.Contains(s, "[secret]") || len(s) > 100 {
			t.Errorf("shows %q", s)
		}
	}
}
