package daemon

import (
	"bytes"
	"net/http"
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
	b, err := d.cfg.Engine.Bundle(selector(r, "receipt"), r.URL.Query().Get("dir"))
	if err != nil {
		return nil, err
	}
	return sendFile(w, "application/json", "receipts.json", bytes.NewReader(b))
}

func (d *Daemon) verifyReceipts(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cfg.Engine.Verify(selector(r, "receipt"), r.URL.Query().Get("dir"))
}

func (d *Daemon) getKey(w http.ResponseWriter, r *http.Request) (any, error) {
	b, err := d.cfg.Engine.PublicKey()
	if err != nil {
		return nil, err
	}
	return sendFile(w, "application/x-pem-file", "receipt.pub", bytes.NewReader(b))
}
