package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
)

// approval are the flags of pando approve.
type approval struct {
	keyDir, message, expect, out, from, ledgerKey string
	reject, public, show                          bool
}

func (a *app) approveCmd() *cobra.Command {
	var f approval
	c := &cobra.Command{
		Use:   "approve [RUN|CELL]",
		Short: "Sign a result, or reject it, as the policy demands before it is accepted",
		Long: `Sign the changes of a run, or of a cell as it is now, with your own key. A policy that
has accept.needs demands it before pando accept takes them:

    accept:
      needs: 1
      for: [control-paths, high-findings]     # or all
      approvers:                              # in the policy of the host or the user
        - {name: alice, key: "ed25519:…"}     # pando approve --public, on alice's machine

What is signed is the run, the cell and the digest of the changes, as pando diff prints it.
When the changes become others, the signature is void. The caller that asked for the run
can't approve it. --reject says no: nothing is accepted until the same approver approves.

The key stays on the machine where this is called: with --host, or a token of scope approve,
that is another one than the daemon's. --out writes the signed statement to a file in place
of giving it, and --from gives such a file. With neither daemon nor network, RUN can be the
file of a bundle (pando receipt export --bundle), which is verified with --ledger-key first.

Requests of a cell to the network that wait for an answer are another thing: pando approvals.`,
		Example: `  pando approve --public
  pando approve r-1a2b -m 'read it all'
  pando approve r-1a2b --reject -m 'why is CI touched?'
  pando --host HOST approve r-1a2b
  pando approve r-1a2b.receipt.tar --ledger-key pando.pub --out approval.json
  pando approve r-1a2b --from approval.json`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.public && len(args) > 0:
				return usage("--public takes no argument")
			case f.public:
				return a.approverPublic(f.keyDir)
			case f.show:
				s, err := a.client.SignOffs(cmd.Context(), arg(args), isRun(arg(args)))
				if err != nil {
					return err
				}
				return a.print(s, func(w io.Writer) { a.showSignOffs(w, s) })
			}
			return a.approve(cmd.Context(), arg(args), f)
		},
	}
	fl := c.Flags()
	fl.BoolVar(&f.reject, "reject", false, "reject it")
	fl.BoolVar(&f.public, "public", false, "print your public key, for a policy; it is made on first use")
	fl.BoolVar(&f.show, "show", false, "only show what is needed and what was signed")
	fl.StringVarP(&f.message, "message", "m", "", "what you have to say about it, which is signed, too")
	fl.StringVar(&f.expect, "expect", "", "only these changes: their `DIGEST`, as pando diff prints it")
	fl.StringVar(&f.keyDir, "key-dir", "", "folder of your key (default: approver, beside the configuration)")
	fl.StringVar(&f.out, "out", "", "write the signed statement to this new file, and don't give it")
	fl.StringVar(&f.from, "from", "", "give the signed statement of this file")
	fl.StringVar(&f.ledgerKey, "ledger-key", "", "public key of the installation that a bundle is from (pando receipt key)")
	c.MarkFlagsMutuallyExclusive("from", "out", "public", "show")
	c.MarkFlagsMutuallyExclusive("from", "reject")
	c.MarkFlagsMutuallyExclusive("from", "message")
	c.MarkFlagsMutuallyExclusive("from", "key-dir")
	return c
}

// approverKey opens the key with which this user approves, and makes it on first use.
func (a *app) approverKey(dir string) (*receipt.Key, string, error) {
	if dir == "" {
		dir = filepath.Join(filepath.Dir(a.home.Config()), "approver")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, dir, err
	}
	key, err := receipt.OpenKey(durable.Disk(dir))
	return key, dir, apiError(err)
}

func (a *app) approverPublic(dir string) error {
	key, dir, err := a.approverKey(dir)
	if err != nil {
		return err
	}
	text := policy.ApproverKeyText(key.Public().Raw())
	return a.print(map[string]string{"key": text, "key_id": key.Public().ID(), "folder": dir}, func(w io.Writer) { fmt.Fprintln(w, text) })
}

func (a *app) approve(ctx context.Context, sel string, f approval) error {
	if f.from != "" {
		envelope, err := os.ReadFile(f.from)
		if err != nil {
			return &api.Error{Kind: "not-found", Message: "cannot read the statement: " + err.Error()}
		}
		s, err := a.client.SignOff(ctx, sel, isRun(sel), envelope)
		return a.signedOff(s, err)
	}
	var s api.SignOffs
	var err error
	bundle := isBundleFile(sel)
	if bundle {
		s, err = a.signOffsOfBundle(ctx, sel, f.ledgerKey)
	} else {
		s, err = a.client.SignOffs(ctx, sel, isRun(sel))
	}
	if err != nil {
		return err
	}
	if want := strings.TrimPrefix(f.expect, "sha256:"); want != "" && (len(want) < 16 || !strings.HasPrefix(strings.TrimPrefix(s.Digest, "sha256:"), want)) {
		return &api.Error{Kind: "conflict", Message: "the changes are others than those that were looked at: their digest is " + changesDigest(s.Digest), Hint: "look at them again: pando diff " + sel}
	}
	key, _, err := a.approverKey(f.keyDir)
	if err != nil {
		return err
	}
	name, err := approverOf(s, policy.ApproverKeyText(key.Public().Raw()), bundle)
	if err != nil {
		return err
	}
	digest, err := cell.ParseDigest(s.Digest)
	if err != nil {
		return err
	}
	decision := receipt.SignApprove
	if f.reject {
		decision = receipt.SignReject
	}
	envelope, err := receipt.SignOffBy(key, digest, receipt.SignOff{Decision: decision, Approver: name, Ledger: s.Ledger, Cell: s.Cell, Runs: s.Runs, Base: s.Base, After: s.After,
		Commit: s.Commit, Policy: s.Policy, Message: f.message, At: time.Now().UTC()})
	if err != nil {
		return apiError(err)
	}
	if f.out != "" {
		return a.save(strings.NewReader(string(envelope)+"\n"), f.out, decision+" "+changesDigest(s.Digest)+", signed; give it with pando approve RUN --from FILE")
	}
	if bundle {
		return usage("a bundle is signed into a file: --out FILE")
	}
	s, err = a.client.SignOff(ctx, sel, isRun(sel), envelope)
	return a.signedOff(s, err)
}

// approverOf is the name that the policy has for a key. That of a bundle's policy may be older than the daemon's.
func approverOf(s api.SignOffs, key string, bundle bool) (string, error) {
	i := slices.IndexFunc(s.Approvers, func(v api.Approver) bool { return v.Key == key })
	switch {
	case i < 0 && bundle:
		return "", &api.Error{Kind: "denied", Message: "cannot sign: the policy of the run names no approver with the key " + key, Hint: "have it named there, or sign with the daemon at hand: pando --host HOST approve RUN"}
	case i < 0:
		return "", &api.Error{Kind: "denied", Message: "cannot sign: the policies of the host and the user name no approver with the key " + key, Hint: "have it named there: accept: approvers: [{name: NAME, key: KEY}]"}
	case s.Approvers[i].Denied != "":
		return "", &api.Error{Kind: "denied", Message: "cannot sign: " + s.Approvers[i].Denied, Hint: "another approver has to look at it"}
	}
	return s.Approvers[i].Name, nil
}

func (a *app) signedOff(s api.SignOffs, err error) error {
	if err != nil {
		return err
	}
	return a.print(s, func(io.Writer) {
		if len(s.SignOffs) == 0 { // the policy names no approvers any more
			return
		}
		last := s.SignOffs[len(s.SignOffs)-1]
		a.say("%s by %s: %s of %s", decisionWords(last.Decision), printable(last.Approver), changesDigest(last.Digest), printable(strings.Join(s.Runs, ", ")))
		if s.Needs > 0 {
			a.say("%d of %s", s.Given, plural(int(s.Needs), "sign-off"))
		}
	})
}

func decisionWords(d string) string {
	if d == receipt.SignReject {
		return "rejected"
	}
	return "approved"
}

// showSignOffs prints what is needed and what was signed.
func (a *app) showSignOffs(w io.Writer, s api.SignOffs) {
	field(w, "changes", changesDigest(s.Digest))
	field(w, "runs", printable(strings.Join(s.Runs, ", ")))
	field(w, "sign-offs", fmt.Sprintf("%d of %d", s.Given, s.Needs))
	for _, y := range s.Why {
		field(w, "needed for", printable(y))
	}
	for _, v := range s.Approvers {
		field(w, "approver", printable(v.Name+strings.TrimRight(": "+cmp.Or(v.Denied, "may sign"), " ")))
	}
	for _, o := range s.SignOffs {
		field(w, decisionWords(o.Decision), signOffLine(o))
	}
	for _, v := range s.Void {
		field(w, "void", printable(v))
	}
}

func signOffLine(o api.SignOff) string {
	text := "by " + o.Approver + " on " + o.At.Format(time.RFC3339) + ", changes " + changesDigest(o.Digest)
	if o.Message != "" {
		text += ": " + o.Message
	}
	return printable(text)
}
