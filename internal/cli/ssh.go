package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

// Names of SSH: a cell is the host CELL.pando, and the block of ~/.ssh/config that says so has a file of its own beside it.
const (
	sshSuffix  = ".pando"
	sshFile    = "pando.conf"
	sshInclude = "Include " + sshFile
	sshVerb    = "ssh-connect"
)

// SSHConfig is what ssh-config wrote.
type SSHConfig struct {
	Block string `json:"block"`          // for ~/.ssh/config
	File  string `json:"file,omitempty"` // that has it; absent when nothing was written
}

func (a *app) sshConfigCmd() *cobra.Command {
	var write bool
	c := &cobra.Command{
		Use: "ssh-config", Short: "Make cells reachable by SSH, as CELL.pando", Args: cobra.NoArgs,
		Long: `Print a block for ~/.ssh/config with which ssh, sftp, scp, rsync and editors reach cells as
hosts: CELL.pando. With --write it is put into ~/.ssh/pando.conf, which ~/.ssh/config then
includes.

No port is open, and no key is needed: ssh starts pando, which connects to the daemon as
you. Shells and commands are those of pando exec, files those of the cell, and ports that
are forwarded with -L or -D are the cell's own. Forwarding with -R, of agents and of X11 is
refused. rsync has to be in the cell, too.`,
		Example: `  pando ssh-config --write
  ssh web.pando
  rsync -a web.pando:dist/ dist/
  code --remote ssh-remote+web.pando $PWD`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out, err := a.sshBlock()
			if err != nil {
				return err
			}
			if write {
				if out.File, err = writeSSH(out.Block); err != nil {
					return err
				}
			}
			return a.print(out, func(w io.Writer) {
				if !write {
					fmt.Fprint(w, out.Block)
					return
				}
				a.say("wrote %s: ssh CELL%s connects to a cell", out.File, sshSuffix)
			})
		},
	}
	c.Flags().BoolVar(&write, "write", false, "write it to ~/.ssh/pando.conf, and include that in ~/.ssh/config")
	return c
}

// sshBlock is the block of a configuration of OpenSSH (ssh_config(5)) for this installation.
func (a *app) sshBlock() (out SSHConfig, err error) {
	self, err := ownPath()
	if err != nil {
		return out, err
	}
	run := sshWord(self) + " " + sshVerb
	vars := ""
	if home := os.Getenv("PANDO_HOME"); home != "" {
		if home, err = filepath.Abs(home); err != nil {
			return out, err
		}
		vars += " " + sshWord("PANDO_HOME="+home)
	}
	if host := os.Getenv("PANDO_HOST"); host != "" { // its token, which is a secret, stays in the environment
		vars += " " + sshWord("PANDO_HOST="+host)
	}
	if vars != "" {
		run = "/usr/bin/env" + vars + " " + run
	}
	// A shell reads the first command, and a name may come from a repository (a submodule's ssh://…): it is quoted.
	out.Block = `# Cells of pando; pando ssh-config --write renews it.
Host *` + sshSuffix + ` "!*'*"
  ProxyCommand ` + run + ` '%n'
  KnownHostsCommand ` + run + ` --key '%n'
  UserKnownHostsFile none
  GlobalKnownHostsFile none
  HostKeyAlias pando
  StrictHostKeyChecking yes
  IdentityFile none
  IdentityAgent none
  ForwardAgent no
  ForwardX11 no
`
	return out, nil
}

// ownPath is the path by which the user calls this program: one that stays when another version is installed.
func ownPath() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if named, err := exec.LookPath("pando"); err == nil {
		a, aerr := os.Stat(named)
		b, berr := os.Stat(self)
		if aerr == nil && berr == nil && os.SameFile(a, b) {
			return filepath.Abs(named)
		}
	}
	return self, nil
}

// sshWord is a word of a command in a configuration of OpenSSH, which has tokens that begin with %, and which a shell reads.
func sshWord(word string) string { return strings.ReplaceAll(shellWord(word), "%", "%%") }

// writeSSH writes a block to the user's configuration of OpenSSH, and returns its file.
func writeSSH(block string) (file string, err error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(home, ".ssh")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	file = filepath.Join(dir, sshFile)
	if err := os.WriteFile(file, []byte(block), 0o600); err != nil {
		return "", err
	}
	config := filepath.Join(dir, "config")
	text, err := os.ReadFile(config)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if includes(string(text)) {
		return file, nil
	}
	at, err := filepath.EvalSymlinks(config) // where it is kept elsewhere
	if err != nil {
		at = config
	}
	return file, replaceFile(at, append([]byte(sshInclude+"\n\n"), text...))
}

// replaceFile gives a file of the user's another content, at once.
func replaceFile(at string, content []byte) error {
	mode := fs.FileMode(0o600)
	if st, err := os.Stat(at); err == nil {
		mode = st.Mode().Perm()
	}
	f, err := os.CreateTemp(filepath.Dir(at), ".pando-")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), at)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// includes reports whether a configuration of OpenSSH includes ours for all hosts: below a Host it would for that alone.
func includes(text string) bool {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == sshInclude {
			return true
		}
		if word, _, _ := strings.Cut(strings.ToLower(line), " "); word == "host" || word == "match" {
			return false
		}
	}
	return false
}

// sshConnectCmd is what ssh starts: it connects its standard input and output with the server in front of a cell, or tells
// that server's key.
func (a *app) sshConnectCmd() *cobra.Command {
	var key bool
	c := &cobra.Command{
		Use: sshVerb + " HOST", Short: "Connect ssh to a cell", Hidden: true, Args: cobra.ExactArgs(1),
		Long: `Connect standard input and output with the SSH server in front of a cell. ssh starts it; see
pando ssh-config.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if key {
				host, err := a.client.SSHHost(cmd.Context())
				if err != nil {
					return err
				}
				fmt.Fprintln(a.stdout, "pando", host.Key)
				return nil
			}
			conn, err := a.client.ConnectSSH(cmd.Context(), strings.TrimSuffix(args[0], sshSuffix))
			if err != nil {
				return err
			}
			defer conn.Close()
			ctx, cancel := context.WithCancel(cmd.Context())
			go func() {
				defer cancel()
				io.Copy(conn, a.stdin)
			}()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			_, err = io.Copy(a.stdout, conn)
			if ctx.Err() != nil { // the client went away
				err = nil
			}
			return err
		},
	}
	c.Flags().BoolVar(&key, "key", false, "print the key of the server, as in a file of known hosts")
	return c
}

// editorVar names the editor that open starts.
const editorVar = "PANDO_EDITOR"

// editors are those that are looked for when none is named: they work on other hosts over SSH.
var editors = []string{"code", "cursor", "windsurf", "codium"}

func (a *app) openCmd() *cobra.Command {
	return &cobra.Command{
		Use: "open CELL", Short: "Open a cell in an editor, over SSH", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeCells,
		Long: `Start an editor on the files of a cell, over SSH: $PANDO_EDITOR, or the first that is there of
VS Code (code), Cursor, Windsurf and VSCodium. Another one, as zed, is given ssh://CELL.pando/PATH.
pando ssh-config --write is needed once.

The files are never mounted on this host, where a prompt or an editor would obey what the
cell wrote to its git configuration.`,
		Example: `  pando open web
  PANDO_EDITOR=zed pando open web`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			cell, err := a.client.Cell(ctx, args[0])
			if err != nil {
				return err
			}
			if err := sshIsConfigured(); err != nil {
				return err
			}
			editor, err := findEditor()
			if err != nil {
				return err
			}
			name := cell.Name
			if name == "" {
				name = cell.ID
			}
			words := editorOn(editor, name+sshSuffix, cell.Source)
			run := exec.CommandContext(ctx, words[0], words[1:]...)
			run.Stdin, run.Stdout, run.Stderr = a.stdin, a.stdout, a.stderr
			return run.Run()
		},
	}
}

// sshIsConfigured rejects a user without the block in their configuration of OpenSSH.
func sshIsConfigured() error {
	home, err := os.UserHomeDir()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(home, ".ssh", "config"))
	if err == nil && (includes(string(text)) || strings.Contains(string(text), "Host *"+sshSuffix)) {
		return nil
	}
	return &api.Error{Kind: "unavailable", Message: "cannot reach cells by SSH: ~/.ssh/config does not know them", Hint: "run pando ssh-config --write"}
}

// findEditor returns the words of the editor's command.
func findEditor() (words []string, err error) {
	if words = shellWords(os.Getenv(editorVar)); len(words) > 0 {
		return words, nil
	}
	for _, name := range editors {
		if at, err := exec.LookPath(name); err == nil {
			return []string{at}, nil
		}
	}
	return nil, &api.Error{Kind: "no-such-binary", Message: "cannot find an editor: there is none of " + strings.Join(editors, ", ") + " on PATH",
		Hint: "name one: " + editorVar + "=COMMAND, which is given ssh://CELL" + sshSuffix + "/PATH"}
}

// editorOn is the command that starts an editor on a directory of a host.
func editorOn(words []string, host, dir string) []string {
	switch path.Base(words[0]) {
	case "code", "code-insiders", "cursor", "windsurf", "codium":
		return append(words, "--remote", "ssh-remote+"+host, dir)
	}
	return append(words, (&url.URL{Scheme: "ssh", Host: host, Path: dir}).String())
}
