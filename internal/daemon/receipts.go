package daemon

import (
	"bytes"
	"net/http"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/evidence"
)

func (d *Daemon) listReceipts(w http.ResponseWriter, r *http.Request) (any, error) {
	limit, err := queryInt(r, "limit")
	if err != nil {
		return nil, err
	}
	if limit > 0 { // page needs one more to know whether there are more
		limit++
	}
	if r.URL.Query().Has("cursor") {
		limit = 0
	}
	return d.cfg.Engine.Receipts(max(limit, 0))
}

func (d *Daemon) getReceipt(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cfg.Engine.Receipt(selector(r, "receipt"), r.URL.Query().Get("dir"))
}

func (d *Daemon) exportReceipts(w http.ResponseWriter, r *http.Request) (any, error) {
	b, err := d.cfg.Engine.ExportReceipts(selector(r, "receipt"), r.URL.Query().Get("dir"))
	if err != nil {
		return nil, err
	}
	return sendFile(w, "application/json", "receipts.json", bytes.NewReader(b))
}

func (d *Daemon) verifyReceipts(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cfg.Engine.Verify(selector(r, "receipt"), r.URL.Query().Get("dir"))
}

func (d *Daemon) getKey(w http.ResponseWriter, r *http.Request) (any, error) {
	return sendFile(w, "application/x-pem-file", "receipt.pub", bytes.NewReader(d.cfg.Engine.PublicKey()))
}

func (d *Daemon) getLedger(_ http.ResponseWriter, r *http.Request) (any, error) {
	since, err := queryInt(r, "since")
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Ledger(int64(since))
}

func (d *Daemon) changeKey(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.KeyChangeRequest](w, r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.ChangeKey(r.Context(), req)
}

// getBundle streams a bundle: of what is named, or of a range of all receipts.
func (d *Daemon) getBundle(w http.ResponseWriter, r *http.Request) (any, error) {
	q := r.URL.Query()
	first, err := queryInt(r, "first")
	if err != nil {
		return nil, err
	}
	end, err := queryInt(r, "end")
	if err != nil {
		return nil, err
	}
	var b *evidence.Bundle
	if q.Has("end") {
		b, err = d.cfg.Engine.BundleFrom(int64(first), int64(end))
	} else {
		b, err = d.cfg.Engine.Bundle(q["of"], q.Get("dir"))
	}
	if err != nil {
		return nil, err
	}
	out := &begun{ResponseWriter: w}
	if err := b.Write(out); err != nil {
		if !out.wrote {
			return nil, err
		}
		d.brokenOff(r, "cannot export receipts", err)
	}
	return done{}, nil
}
