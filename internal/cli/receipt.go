package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/push"
	"github.com/pando-dev/pando/internal/receipt"
)

func (a *app) receiptCmd() *cobra.Command {
	c := &cobra.Command{Use: "receipt", Short: "Show, export and verify signed receipts", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	c.AddCommand(a.receiptLsCmd(), a.receiptShowCmd(), a.receiptVerifyCmd(), a.receiptExportCmd(), a.receiptPushCmd(), a.receiptKeyCmd())
	return c
}

func (a *app) receiptLsCmd() *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use: "ls", Short: "List receipts, newest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := a.client.Receipts(cmd.Context(), limit)
			if err != nil {
				return err
			}
			return a.print(list, func(w io.Writer) {
				t := a.newTable(w)
				t.row("N", "RECEIPT", "VERDICT", "WHEN", "ABOUT", "WHAT")
				for _, r := range list {
					about := r.Run
					if about == "" {
						about = r.Cell
					}
					t.row(fmt.Sprint(r.Index), short(r.ID), r.Verdict, ago(r.At), about, cut(r.Summary, 50))
				}
				t.flush()
			})
		},
	}
	c.Flags().IntVarP(&limit, "limit", "n", 30, "number of receipts; 0 for all")
	return c
}

func (a *app) receiptShowCmd() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use: "show [RUN|RECEIPT]", Short: "Show a receipt", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := a.client.Receipt(cmd.Context(), arg(args))
			if err != nil {
				return err
			}
			switch {
			case a.json:
				return a.print(r, nil)
			case format == "json":
				var v any
				if err := json.Unmarshal(r.Statement, &v); err != nil {
					return err
				}
				enc := json.NewEncoder(a.stdout)
				enc.SetEscapeHTML(false)
				enc.SetIndent("", "  ")
				return enc.Encode(v)
			case format == "md":
				a.page(r.Markdown, false)
				return nil
			}
			return usage("--format is md or json")
		},
	}
	c.Flags().StringVar(&format, "format", "md", "md or json")
	complete(c, "format", "md", "json")
	return c
}

func (a *app) receiptVerifyCmd() *cobra.Command {
	var all bool
	var keyFile, known string
	c := &cobra.Command{
		Use:   "verify [RUN|RECEIPT|FILE|DIR]",
		Short: "Verify a receipt, all receipts, an exported file or a pushed copy",
		Long: `Verify receipts: signatures, their place in the ledger, and the files they name.

An exported file is verified with nothing but the public key of the installation
it comes from, on any machine: pando receipt verify receipts.json --key pando.pub
So is a bundle, and a directory to which pando receipt push copied.

Truncation of the newest receipts shows only against a newer ledger: give a file that
was exported earlier with --known.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			sel := arg(args)
			var v api.Verification
			var err error
			st, serr := os.Stat(sel)
			file := sel != "" && serr == nil && (st.Mode().IsRegular() || st.IsDir() && push.IsCopy(sel))
			switch {
			case all && sel != "":
				return usage("--all takes no argument")
			case known != "" && !file:
				return usage("--known belongs to an exported file")
			case file:
				v, err = a.verifyFile(cmd.Context(), sel, keyFile, known)
			case all:
				v, err = a.client.VerifyReceipts(cmd.Context(), "all")
			default:
				v, err = a.client.VerifyReceipts(cmd.Context(), sel)
			}
			if err != nil {
				return err
			}
			if err := a.print(v, func(w io.Writer) { a.verified(w, v) }); err != nil {
				return err
			}
			if !v.OK {
				a.exit = api.ExitVerifyFailure
			}
			return nil
		},
	}
	c.Flags().BoolVar(&all, "all", false, "the whole ledger and every run's records")
	c.Flags().StringVar(&known, "known", "", "earlier exported file or pushed copy: the verified file must extend its ledger")
	c.Flags().StringVar(&keyFile, "key", "", "public key, for an exported file (default: this installation's)")
	return c
}

func (a *app) verified(w io.Writer, v api.Verification) {
	for _, p := range v.Problems {
		where := ""
		if p.File != "" {
			where = " " + p.File
		}
		if p.Index >= 0 {
			where = fmt.Sprintf(" receipt %d%s", p.Index, where)
		}
		fmt.Fprintf(w, "%s%s: %s\n", p.Reason, where, printable(p.What))
	}
	for _, u := range v.Unproven {
		a.say("not shown: %s", u)
	}
	if v.OK {
		a.say("verified: %s, %s, ledger of %d, key %s", plural(int(v.Receipts), "receipt"), plural(v.Files, "file"), v.Head, short(v.KeyID))
	} else {
		a.say("verification FAILED: %s", plural(len(v.Problems), "problem"))
	}
}

// verifyFile verifies an exported bundle without a daemon.
func (a *app) verifyFile(ctx context.Context, path, keyFile, known string) (api.Verification, error) {
	v := api.Verification{Problems: []api.Problem{}, Unproven: []string{}}
	pem, err := a.keyOf(ctx, keyFile)
	if err != nil {
		return v, err
	}
	key, err := receipt.ParsePublicKey(pem)
	if err != nil {
		return v, apiError(err)
	}
	var newest *receipt.Head
	if known != "" {
		if newest, err = knownHead(known, path, key); err != nil {
			return v, err
		}
	}
	rep, files, err := verifyExport(path, key, newest)
	if err != nil {
		return v, apiError(err)
	}
	v.Files = files
	v.OK, v.Receipts, v.Head, v.Root, v.KeyID = rep.OK(), rep.Receipts, rep.Head.Size, rep.Head.Root.String(), key.ID()
	for _, p := range rep.Problems {
		v.Problems = append(v.Problems, api.Problem{Reason: string(p.Reason), Index: p.Index, File: p.File, What: p.What})
	}
	v.Unproven = append(v.Unproven, rep.Unproven...)
	return v, nil
}

// keyOf is the public key in a file, or that of the installation.
func (a *app) keyOf(ctx context.Context, file string) ([]byte, error) {
	if file == "" {
		return a.client.PublicKey(ctx)
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, &api.Error{Kind: "not-found", Message: "cannot read the key: " + err.Error()}
	}
	return pem, nil
}

// verifyExport verifies what was exported or copied, whichever form it has.
func verifyExport(path string, key receipt.PublicKey, newest *receipt.Head) (rep *receipt.Report, files int, err error) {
	if push.IsCopy(path) {
		return push.Verify(path, key, newest)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	archive, err := isArchive(f)
	if err != nil {
		return nil, 0, err
	}
	if archive {
		return receipt.VerifyArchive(f, key, newest)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, 0, err
	}
	b, err := receipt.DecodeBundle(text)
	if err != nil {
		return nil, 0, err
	}
	return receipt.Verify(b, key, newest), 0, nil
}

// isArchive reports whether a file is a bundle as an archive, and not JSON.
func isArchive(f *os.File) (bool, error) {
	var first [1]byte
	n, err := f.ReadAt(first[:], 0)
	if err == io.EOF {
		err = nil
	}
	return n == 1 && !strings.ContainsAny(string(first[:]), "{ \t\r\n"), err
}

// exported reads what was exported or copied, of which nothing is checked: the signed head, and the history of keys, which starts
// from key or leads to it.
func exported(path string, key receipt.PublicKey) (note []byte, keys *receipt.Keys, err error) {
	if push.IsCopy(path) {
		if note, err = push.NoteOf(path); err == nil {
			keys, err = push.KeysOf(path, key)
		}
		return note, keys, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	archive, err := isArchive(f)
	if err != nil {
		return nil, nil, err
	}
	var b *receipt.Bundle
	if archive {
		b, err = receipt.ArchiveExport(f)
	} else if text, rerr := io.ReadAll(f); rerr != nil {
		return nil, nil, rerr
	} else {
		b, err = receipt.DecodeBundle(text)
	}
	if err != nil {
		return nil, nil, err
	}
	keys, err = receipt.ReadKeys(key, b.Keys)
	return []byte(b.Head), keys, err
}

// knownHead returns the ledger head of an earlier exported file, signed by a key of the history of the file at path.
func knownHead(known, path string, key receipt.PublicKey) (*receipt.Head, error) {
	_, keys, err := exported(path, key)
	if err != nil { // verification says why
		if keys, err = receipt.ReadKeys(key, nil); err != nil {
			return nil, apiError(err)
		}
	}
	note, _, err := exported(known, key)
	if note == nil {
		return nil, apiError(err)
	}
	h, err := receipt.ParseHead(note, keys)
	if err != nil {
		return nil, apiError(err)
	}
	return &h, nil
}

func (a *app) receiptExportCmd() *cobra.Command {
	var out, bundle string
	var all bool
	c := &cobra.Command{
		Use: "export [RUN|CELL|RECEIPT…]", Short: "Export receipts with the proofs that verify them elsewhere", ValidArgsFunction: a.completeRuns,
		Long: `Export receipts with the proofs that verify them elsewhere.

--bundle writes one file, a tar archive, for any runs, cells or receipts: their receipts, those
that they come from, the decisions on them, the signed head with proofs, the files of the runs,
a view of each run as SLSA provenance of its patch, and the public key. Without it the receipt
alone is written, as JSON.

Verify a bundle anywhere: python3 docs/verify/verify.py FILE --key KEY, or
pando receipt verify FILE --key KEY. Get the key another way: pando receipt key.`,
		Example: `  pando receipt export --bundle r-1a2b.receipt.tar
  pando receipt export web try-1 --bundle web.receipt.tar
  pando receipt export --all --bundle everything.receipt.tar`,
		RunE: func(cmd *cobra.Command, args []string) error {
			sel := arg(args)
			if all {
				if sel != "" {
					return usage("--all takes no argument")
				}
				sel, args = "all", []string{"all"}
			}
			if bundle != "" {
				return a.exportBundle(cmd.Context(), args, bundle)
			}
			if len(args) > 1 {
				return usage("several runs need --bundle")
			}
			body, err := a.client.ExportReceipts(cmd.Context(), sel)
			if err != nil {
				return err
			}
			defer body.Close()
			if out == "-" || a.json {
				_, err := io.Copy(a.stdout, body)
				return err
			}
			return a.save(body, out, "verify it anywhere with the key from pando receipt key")
		},
	}
	c.Flags().BoolVar(&all, "all", false, "the whole ledger")
	c.Flags().StringVarP(&out, "output", "o", "receipts.json", "file, or - for stdout")
	c.Flags().StringVar(&bundle, "bundle", "", "write one archive with everything to this new file, or - for stdout")
	c.MarkFlagsMutuallyExclusive("output", "bundle")
	return c
}

func (a *app) exportBundle(ctx context.Context, of []string, to string) error {
	body, err := a.client.Bundle(ctx, of)
	if err != nil {
		return err
	}
	defer body.Close()
	err = a.save(body, to, "verify it anywhere with the key from pando receipt key")
	var known *api.Error
	if errors.As(err, &known) && known.Kind == "exists" {
		known.Hint = "choose another file with --bundle, or remove it"
	}
	return err
}

func (a *app) receiptKeyCmd() *cobra.Command {
	var digest bool
	c := &cobra.Command{
		Use: "key", Short: "Print the public key that receipts are signed with, and change it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pem, err := a.client.PublicKey(cmd.Context())
			if err != nil {
				return err
			}
			key, err := receipt.ParsePublicKey(pem)
			if err != nil {
				return apiError(err)
			}
			return a.print(map[string]string{"public_key": string(pem), "digest": key.ID()}, func(w io.Writer) {
				if digest {
					fmt.Fprintln(w, key.ID())
					return
				}
				w.Write(pem)
			})
		},
	}
	c.Flags().BoolVar(&digest, "digest", false, "print its digest, to compare with that of a key got another way")
	c.AddCommand(a.receiptKeyLsCmd(), a.receiptKeyRotateCmd(), a.receiptKeyRevokeCmd())
	return c
}
