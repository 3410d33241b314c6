package cli

import (
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

func (a *app) receiptKeyLsCmd() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the keys that have signed the ledger", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := a.client.Ledger(cmd.Context(), 0)
			if err != nil {
				return err
			}
			return a.print(l.Keys, func(w io.Writer) { a.ledgerKeys(w, l.Keys) })
		},
	}
}

func (a *app) ledgerKeys(w io.Writer, list []api.LedgerKey) {
	t := a.newTable(w)
	t.row("KEY", "SIGNS RECEIPTS", "STATE")
	for _, k := range list {
		signs, state := fmt.Sprintf("%d and later", k.First), "signs"
		if k.Last != nil {
			signs, state = fmt.Sprintf("%d to %d", k.First, *k.Last), "replaced"
		}
		if k.Revoked != nil {
			state = fmt.Sprintf("revoked since receipt %d", *k.Revoked)
		}
		t.row(short(k.KeyID), signs, state)
	}
	t.flush()
}

func (a *app) receiptKeyRotateCmd() *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "rotate", Short: "Have a new key sign receipts from now on", Args: cobra.NoArgs,
		Long: `Have a new key sign receipts from now on.

The change is a receipt of the ledger, signed by the key of before, with a statement by the new
one. What was signed stays good. The private half of the key of before is removed, if it is
pando's own. A verifier goes on with either public key; hand out the new one (pando receipt key).`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.changeKey(cmd, api.KeyChangeRequest{Reason: reason})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "text for the receipt")
	return c
}

func (a *app) receiptKeyRevokeCmd() *cobra.Command {
	var since, reason string
	c := &cobra.Command{
		Use: "revoke KEY --reason TEXT", Short: "Revoke a key: what it signed from some receipt on counts for nothing", Args: cobra.ExactArgs(1),
		Long: `Revoke a key: what it signed from some receipt on counts for nothing.

KEY is the digest of a key, or its first digits: pando receipt key ls. Receipts that it signed
before --since stay good; those from there on fail verification, each by name. The key that signs
now is replaced at once by a new one.

A revocation is known only to verifiers that see it. Hand out the new public key (pando receipt
key): with it, nothing that the revoked key signs elsewhere is believed.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			req := api.KeyChangeRequest{Revoke: args[0], Reason: reason}
			if reason == "" {
				return usage("say why: --reason TEXT")
			}
			if since != "now" {
				n, err := strconv.ParseInt(since, 10, 64)
				if err != nil {
					r, err := a.client.Receipt(cmd.Context(), since)
					if err != nil {
						return err
					}
					n = r.Index
				}
				req.Since = &n
			}
			return a.changeKey(cmd, req)
		},
	}
	c.Flags().StringVar(&since, "since", "now", "first receipt that it does not count for: its number, its digest, a run, or now")
	c.Flags().StringVar(&reason, "reason", "", "text for the receipt")
	return c
}

func (a *app) changeKey(cmd *cobra.Command, req api.KeyChangeRequest) error {
	before, err := a.client.Ledger(cmd.Context(), 0)
	if err != nil {
		return err
	}
	l, err := a.client.ChangeKey(cmd.Context(), req)
	if err != nil {
		return err
	}
	return a.print(l, func(io.Writer) {
		if req.Revoke != "" {
			a.say("revoked: verifiers that see receipt %d believe the key no more", l.Size-1)
		}
		if l.KeyID != before.KeyID {
			a.say("key %s signs from receipt %d on; hand it out: pando receipt key", short(l.KeyID), l.Size)
		}
	})
}
