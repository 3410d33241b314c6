package cli

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/credential"
)

func (a *app) credentialCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "credential", Short: "Lend secrets to cells that never see them", Args: cobra.NoArgs,
		Long: `Store secrets, and lend them to cells. A cell never gets a value: it gets a
placeholder that is worth nothing elsewhere, and its gateway puts the value into
requests to the places that the credential is for. Values are kept encrypted.

  pando credential add anthropic --from-env ANTHROPIC_API_KEY
  pando run --allow @anthropic --credential anthropic -- claude`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(a.credentialAddCmd(), a.credentialLsCmd(), a.credentialCheckCmd(), a.credentialRevokeCmd(), a.credentialRmCmd())
	return c
}

// maxSecret bounds a value, in bytes.
const maxSecret = 1 << 20

func (a *app) credentialAddCmd() *cobra.Command {
	var req api.CredentialRequest
	var fromEnv, fromFile string
	c := &cobra.Command{
		Use:   "add NAME",
		Short: "Store a credential",
		Long: `Store a credential. The value comes from a variable, from a file, from standard
input, or is asked for; it is never an argument, where others could see it.

What is said with --for is where the value may go: a URL with * and ** in its
path, methods before it if they matter. --as is the header that it is put in,
where {secret} stands for the value and {basic:USER} for USER and the value as in
basic authentication. Well-known services need neither: ` + strings.Join(credential.KnownNames(), ", ") + `.

With --ssh, a key of your SSH agent is lent: the cell gets a socket that signs
with this key alone, and only for the hosts given with --for. With --for
git-signatures it signs commits and tags, and git in the cell does so by itself.`,
		Example: `  pando credential add github --from-env GH_TOKEN
  pando credential add mine --from-file token.txt --for 'GET https://api.example.com/v1/**' \
    --as 'X-Token: {secret}' --env EXAMPLE_TOKEN
  pando credential add deploy --ssh SHA256:… --for github.com
  pando credential add signing --ssh ~/.ssh/id_ed25519.pub --for git-signatures`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name = args[0]
			if req.Key != "" {
				if fromEnv != "" || fromFile != "" {
					return usage("a key of SSH has no value: it stays in your agent")
				}
				req.Kind = credential.SSH
				var err error
				if req.Key, err = publicKey(req.Key); err != nil {
					return err
				}
			} else {
				var err error
				if req.Secret, err = a.readSecret(cmd.Context(), req.Name, fromEnv, fromFile); err != nil {
					return err
				}
			}
			c, err := a.client.AddCredential(cmd.Context(), req)
			if err != nil {
				return err
			}
			return a.print(c, func(w io.Writer) {
				fmt.Fprintf(w, "%s is stored: %s\n", c.Name, strings.Join(goesTo(c), ", "))
			})
		},
	}
	f := c.Flags()
	f.StringVar(&fromEnv, "from-env", "", "take the value from this variable")
	f.StringVar(&fromFile, "from-file", "", "take the value from this file (readable by its owner alone, outside of repositories and sources)")
	f.StringArrayVar(&req.For, "for", nil, "where it may be sent: [METHOD,… ]https://HOST/PATH; for a key of SSH HOST[:PORT], or git-signatures")
	f.StringVar(&req.As, "as", "", "the header that carries it: 'Authorization: Bearer {secret}'")
	f.StringArrayVar(&req.Env, "env", nil, "variable that holds the placeholder in a cell")
	f.StringVar(&req.Key, "ssh", "", "lend this key of your SSH agent: its fingerprint, as ssh-add -l shows it, or its public key or the file of that")
	f.StringVar(&req.Comment, "comment", "", "for people")
	f.BoolVar(&req.Replace, "replace", false, "replace a credential of that name, also in running cells")
	return c
}

// maxPublicKey bounds a file with a public key, in bytes.
const maxPublicKey = 16 << 10

// publicKey returns the key of SSH that is meant: a fingerprint or a key as it is, of a file NAME.pub what is in it, also
// where NAME is given.
func publicKey(key string) (string, error) {
	for _, begin := range []string{"SHA256:", "ssh-", "ecdsa-", "sk-"} {
		if strings.HasPrefix(key, begin) {
			return key, nil
		}
	}
	if !strings.HasSuffix(key, ".pub") { // the other file is the private key
		key += ".pub"
	}
	f, err := os.Open(key)
	if err != nil {
		return "", &api.Error{Kind: "not-found", Message: "cannot read the public key: " + err.Error(), Hint: "give the fingerprint that ssh-add -l shows, the file of the public key, or a line of ssh-add -L"}
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxPublicKey))
	if err == nil && bytes.Contains(b, []byte("PRIVATE KEY")) {
		err = usage("%s has a private key: it stays where it is", key)
	}
	return strings.TrimSpace(string(b)), err
}

// readSecret reads a value from a variable, a file or standard input, and removes one line end.
func (a *app) readSecret(ctx context.Context, name, fromEnv, fromFile string) (string, error) {
	var b []byte
	var err error
	switch {
	case fromEnv != "" && fromFile != "":
		return "", usage("the value comes from --from-env or from --from-file")
	case fromEnv != "":
		v, ok := os.LookupEnv(fromEnv)
		if !ok || v == "" {
			return "", &api.Error{Kind: "invalid", Message: fmt.Sprintf("cannot store %s: the variable %s is not set", name, fromEnv), Hint: "export " + fromEnv + ", or leave out --from-env to be asked"}
		}
		b = []byte(v)
	case fromFile != "":
		if b, err = a.readSecretFile(ctx, "store "+name, fromFile, maxSecret); err != nil {
			return "", err
		}
	case term.IsTerminal(int(a.stdin.Fd())):
		b, err = a.readHidden(ctx, fmt.Sprintf("value of %s (not shown): ", name))
	default:
		b, err = io.ReadAll(io.LimitReader(a.stdin, maxSecret))
	}
	if err != nil {
		return "", fmt.Errorf("cannot read the value of %s: %w", name, err)
	}
	b = bytes.TrimRight(b, "\r\n")
	if len(b) == 0 {
		return "", &api.Error{Kind: "invalid", Message: fmt.Sprintf("cannot store %s: there is no value", name), Hint: "use --from-env VARIABLE or --from-file FILE, or write the value to standard input"}
	}
	return string(b), nil
}

// readHidden asks for a line without echo. Input typed before the question is not shown either.
func (a *app) readHidden(ctx context.Context, prompt string) ([]byte, error) {
	restore, err := hideInput(int(a.stdin.Fd()))
	if err != nil {
		return nil, err
	}
	defer fmt.Fprintln(a.stderr)
	defer restore()
	fmt.Fprint(a.stderr, prompt)
	type read struct {
		b   []byte
		err error
	}
	line := make(chan read, 1)
	go func() { // it ends with the program when no input comes
		b, err := bufio.NewReader(io.LimitReader(a.stdin, maxSecret)).ReadBytes('\n')
		if err == io.EOF {
			err = nil
		}
		line <- read{b, err}
	}()
	select {
	case r := <-line:
		return r.b, r.err
	case <-ctx.Done():
		return nil, &api.Error{Kind: "interrupted", Message: "cannot store it: interrupted"}
	}
}

// goesTo lists the places that a credential may be sent to.
func goesTo(c api.Credential) (list []string) {
	list = append(list, c.For...)
	for _, u := range c.Also {
		list = append(list, u.For...)
	}
	return list
}

func (a *app) credentialLsCmd() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List credentials, where they may be sent, and which cells have them", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := a.client.Credentials(cmd.Context())
			if err != nil {
				return err
			}
			return a.print(list, func(w io.Writer) {
				if len(list) == 0 {
					a.say("no credentials yet: pando credential add NAME stores one")
					return
				}
				t := a.newTable(w)
				t.row("NAME", "KIND", "LENT TO", "CREATED", "VARIABLES", "FOR")
				for _, c := range list {
					to := strings.Join(goesTo(c), ", ")
					if c.Problem != "" {
						to = c.Problem
					}
					t.row(c.Name, c.Kind, holders(c), ago(c.Created), strings.Join(c.Env, " "), to)
				}
				t.flush()
			})
		},
	}
}

// holders lists the cells that have a credential now.
func holders(c api.Credential) string {
	var names []string
	for _, l := range c.Lent {
		name := l.CellName
		if name == "" {
			name = l.Cell
		}
		if !l.Revoked.IsZero() {
			name += " (revoked)"
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return "–"
	}
	if len(names) > 3 {
		names = append(names[:3], fmt.Sprintf("and %d more", len(names)-3))
	}
	return strings.Join(names, ", ")
}

func (a *app) credentialCheckCmd() *cobra.Command {
	return &cobra.Command{
		Use: "check NAME", Short: "Check whether a credential can be used", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeCredentials,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := a.client.CheckCredential(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := a.print(r, func(w io.Writer) {
				for _, p := range r.Problems {
					fmt.Fprintf(w, "%s: %s\n", args[0], printable(p))
				}
				switch {
				case r.OK && r.Credential.Path != "":
					fmt.Fprintf(w, "%s is lent from %s, which has a token; only its service can tell whether it is still valid\n", args[0], printable(r.Credential.Path))
				case r.OK:
					fmt.Fprintf(w, "%s is stored, can be decrypted, and has the right shape; only its service can tell whether it is still valid\n", args[0])
				}
			}); err != nil {
				return err
			}
			if !r.OK {
				return &exitError{api.ExitVerifyFailure}
			}
			return nil
		},
	}
}

func (a *app) credentialRevokeCmd() *cobra.Command {
	var req api.RevokeRequest
	c := &cobra.Command{
		Use:   "revoke NAME (--cell CELL | --subtree CELL | --all)",
		Short: "Take a credential back from cells, at once",
		Long: `Take a credential back from cells, also while they run. It stays stored and may
be lent to other cells; pando credential rm deletes it.`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeCredentials,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := a.client.RevokeCredential(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return a.print(r, func(w io.Writer) {
				did := "taken back from"
				if req.Undo {
					did = "given back to"
				}
				fmt.Fprintf(w, "%s is %s %s\n", args[0], did, plural(len(r.Cells), "cell"))
			})
		},
	}
	f := c.Flags()
	f.StringVar(&req.Cell, "cell", "", "from this cell")
	f.StringVar(&req.Subtree, "subtree", "", "from this cell and all its forks")
	f.BoolVar(&req.All, "all", false, "from every cell")
	f.BoolVar(&req.Undo, "undo", false, "lend it to them again")
	c.RegisterFlagCompletionFunc("cell", a.completeCells)
	c.RegisterFlagCompletionFunc("subtree", a.completeCells)
	return c
}

func (a *app) credentialRmCmd() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", Short: "Delete credentials, and take them back from all cells", Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.completeCredentials,
		RunE: func(cmd *cobra.Command, args []string) error {
			list := []api.RevokeResult{}
			err := inTurn(args, func(name string) (api.RevokeResult, error) { return a.client.RemoveCredential(cmd.Context(), name) }, func(r api.RevokeResult) {
				list = append(list, r)
			})
			return a.printWith(err, list, func(w io.Writer) {
				for _, r := range list {
					fmt.Fprintf(w, "%s is forgotten; %s had it\n", r.Credential, plural(len(r.Cells), "cell"))
				}
			})
		},
	}
}

func (a *app) completeCredentials(cmd *cobra.Command, _ []string, prefix string) (out []string, _ cobra.ShellCompDirective) {
	if a.prepare() != nil || !a.client.Alive(cmd.Context()) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := a.client.Credentials(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for _, c := range list {
		if strings.HasPrefix(c.Name, prefix) {
			out = append(out, c.Name+"\t"+strings.Join(goesTo(c), ", "))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
