package cli

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
)

// isBundleFile reports whether what pando approve is called with is the file of a bundle.
func isBundleFile(sel string) bool {
	st, err := os.Stat(sel)
	return err == nil && st.Mode().IsRegular() && strings.HasSuffix(sel, ".tar")
}

// signOffsOfBundle says what there is to sign of the newest run in a bundle, which has to verify with the installation's key. It needs no daemon
// with keyFile.
func (a *app) signOffsOfBundle(ctx context.Context, path, keyFile string) (s api.SignOffs, err error) {
	bad := func(what string) (api.SignOffs, error) {
		return s, &api.Error{Kind: "corrupt", Message: "cannot sign what is in " + path + ": " + what, Hint: "see pando receipt verify " + shellWord(path)}
	}
	v, err := a.verifyFile(ctx, path, keyFile, "")
	if err != nil {
		return s, err
	}
	if !v.OK {
		return bad(v.Problems[0].What)
	}
	pem, err := a.keyOf(ctx, keyFile)
	if err != nil {
		return s, err
	}
	key, err := receipt.ParsePublicKey(pem)
	if err != nil {
		return s, apiError(err)
	}
	f, err := os.Open(path)
	if err != nil {
		return s, err
	}
	defer f.Close()
	if is, err := isArchive(f); err != nil || !is {
		return bad("it is no bundle")
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return s, err
	}
	b, err := receipt.ArchiveExport(f)
	if err != nil {
		return s, apiError(err)
	}
	keys, err := receipt.ReadKeys(key, b.Keys)
	if err != nil {
		return s, apiError(err)
	}
	for i := len(b.Receipts) - 1; i >= 0; i-- {
		st, err := b.Receipts[i].Statement()
		if err != nil {
			return bad(err.Error())
		}
		if st.PredicateType == receipt.PredicateRun {
			return signOffsOfRun(st, keys.Origin())
		}
	}
	return bad("it has no run")
}

// signOffsOfRun is what the receipt of a run says of what there is to sign.
func signOffsOfRun(st receipt.Statement, origin string) (s api.SignOffs, err error) {
	var p struct {
		Run    string `json:"run"`
		Cell   string `json:"cell"`
		Before *struct {
			Content string `json:"content_digest"`
		} `json:"before"`
		After *struct {
			Content string `json:"content_digest"`
		} `json:"after"`
		Policy struct {
			Digest string           `json:"digest"`
			Text   policy.Effective `json:"text"`
		} `json:"policy"`
		Asked *api.Asked `json:"asked"`
	}
	if err := json.Unmarshal(st.Predicate, &p); err != nil {
		return s, err
	}
	if p.Before == nil || p.After == nil {
		return s, &api.Error{Kind: "conflict", Message: "cannot sign run " + p.Run + ": it has no result"}
	}
	s = api.SignOffs{Ledger: origin, Cell: p.Cell, Runs: []string{p.Run}, Base: p.Before.Content, After: p.After.Content, Policy: p.Policy.Digest,
		Digest: receipt.ChangesDigest(p.Before.Content, p.After.Content).String()}
	for _, o := range p.Policy.Text.Accept.Approvers {
		v := api.Approver{Name: o.Name, Key: o.Key}
		if p.Asked != nil && (o.Is(p.Asked.User) || o.Is(p.Asked.TokenName) || o.Is(p.Asked.Token)) {
			v.Denied = o.Name + " asked for run " + p.Run
		}
		s.Approvers = append(s.Approvers, v)
	}
	return s, nil
}
