package api

import "time"

// Upload is a source that was sent to the daemon and that nothing has imported yet. One
// run, cell or template names it (upload), and ends it.
type Upload struct {
	ID      string    `json:"id"`    // "u-…"
	Files   int       `json:"files"` // further names of a file count, folders do not
	Bytes   int64     `json:"bytes"` // of contents
	Expires time.Time `json:"expires"`
}
