// Package signer signs receipts and heads with a program of the host, for keys that lie elsewhere: in a token, behind a key
// management service, with another user.
//
// The program gets what is to be signed on its standard input, and writes the Ed25519 signature to its standard output: 64 bytes,
// or those in base64. With the word "public" as a further argument it writes its public key, PEM or "ed25519:" and 32 bytes in base64.
//
// It promises that a signature which is not the key's, and a program that takes too long or fails, are errors. The caller says
// where the settings are.
package signer

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/receipt"
)

// Settings are the file that names the program.
type Settings struct {
	Signer struct {
		Command  []string `yaml:"command"`  // the program, by its absolute path, and its arguments; empty: pando keeps the key
		Public   string   `yaml:"public"`   // its public key; empty: the program says it
		Previous []string `yaml:"previous"` // the program of the key that signed before, for a change of keys
	} `yaml:"signer"`
}

// limit is how long a program may take, in all.
const limit = 10 * time.Second

const op = "signer.Open"

// Read reads the file of settings; without one the settings are empty. It refuses one that others can write to: it names a program.
func Read(path string) (s Settings, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, cell.Errorf(cell.Denied, op, "", "cannot read the settings of the signer: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return s, err
	}
	own, ok := st.Sys().(*syscall.Stat_t)
	switch {
	case !st.Mode().IsRegular():
		return s, cell.Errorf(cell.Invalid, op, "put a file there", "cannot read %s: it is no regular file", path)
	case st.Mode().Perm()&0o022 != 0 || ok && own.Uid != 0 && int(own.Uid) != os.Geteuid():
		return s, cell.Errorf(cell.Denied, op, "make it yours, and run chmod go-w "+path, "cannot trust %s: others can write to it", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return s, err
	}
	if err := yaml.UnmarshalWithOptions(text, &s, yaml.Strict()); err != nil && !errors.Is(err, io.EOF) {
		return s, cell.Errorf(cell.Invalid, op, "", "cannot read %s: %s", path, strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	for _, words := range [][]string{s.Signer.Command, s.Signer.Previous} {
		if len(words) > 0 && !filepath.IsAbs(words[0]) {
			return s, cell.Errorf(cell.Invalid, op, "give its absolute path", "cannot use the signer %q of %s: which program that is depends on where it is looked for", words[0], path)
		}
	}
	return s, nil
}

// Open makes the signers that the settings name.
func Open(s Settings) (e receipt.Elsewhere, err error) {
	if len(s.Signer.Command) > 0 {
		if e.Signs, err = newProgram(s.Signer.Command, s.Signer.Public); err != nil {
			return e, err
		}
	}
	if len(s.Signer.Previous) > 0 {
		e.Before, err = newProgram(s.Signer.Previous, "")
	}
	return e, err
}

// program is a Signer. It is safe for concurrent use.
type program struct {
	words  []string
	public receipt.PublicKey
}

func newProgram(words []string, public string) (receipt.Signer, error) {
	p := &program{words: words}
	text := []byte(public)
	if public == "" {
		var err error
		if text, err = p.run(nil, "public"); err != nil {
			return nil, err
		}
	}
	var err error
	if p.public, err = receipt.ParseKeyText(strings.TrimSpace(string(text))); err != nil {
		p.public, err = receipt.ParsePublicKey(append(bytes.TrimSpace(text), '\n'))
	}
	if err != nil {
		return nil, cell.Errorf(cell.Invalid, op, "it is to be an Ed25519 key, PEM or ed25519: and base64", "cannot use the public key of the signer %s", words[0])
	}
	return p, nil
}

// Public implements receipt.Signer.
func (p *program) Public() receipt.PublicKey { return p.public }

// Sign implements receipt.Signer.
func (p *program) Sign(message []byte) ([]byte, error) {
	out, err := p.run(message)
	if err != nil {
		return nil, err
	}
	sig := out
	if len(sig) != 64 {
		if sig, err = base64.StdEncoding.DecodeString(strings.TrimSpace(string(out))); err != nil {
			sig = nil
		}
	}
	if !p.public.Verify(message, sig) {
		return nil, p.failed("its answer of %d bytes is no signature by the key %s", len(out), p.public.ID())
	}
	return sig, nil
}

func (p *program) failed(format string, args ...any) error {
	return cell.Errorf(cell.Unavailable, "signer.Sign", "see pando doctor", "the signer "+p.words[0]+" failed: "+format, args...)
}

func (p *program) run(in []byte, more ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.words[0], append(p.words[1:len(p.words):len(p.words)], more...)...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}
	if home, err := os.UserHomeDir(); err == nil {
		cmd.Env = append(cmd.Env, "HOME="+home)
	}
	var out, said bounded
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &said
	cmd.WaitDelay = time.Second // for what it started and left behind
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, p.failed("it took longer than %v", limit)
	case err != nil:
		what := strings.TrimSpace(string(said.b))
		return nil, p.failed("%w%s", err, cell.Clip(strings.TrimSuffix(": "+what, ": ")))
	}
	return out.b, nil
}

// bounded keeps the beginning of what is written.
type bounded struct{ b []byte }

func (w *bounded) Write(p []byte) (int, error) {
	w.b = append(w.b, p[:min(len(p), 4096-len(w.b))]...)
	return len(p), nil
}

// Try has a signer sign something that is no receipt and no head, and says in words which it is.
func Try(s receipt.Signer) (what string, err error) {
	p, ok := s.(*program)
	if !ok {
		return "a key in the state (" + receipt.KeyFile + ")", nil
	}
	began := time.Now()
	if _, err := p.Sign([]byte("pando doctor 1\n")); err != nil {
		return "", err
	}
	return fmt.Sprintf("the program %s, a signature in %v", p.words[0], time.Since(began).Round(time.Millisecond)), nil
}
