package api

import "time"

// Upload is an uploaded source that nothing has imported yet. One run, cell or template names it
// (upload) and consumes it.
type Upload struct {
	ID      string    `json:"id"`    // "u-…"
	Files   int       `json:"files"` // hard links count as files, directories do not
	Bytes   int64     `json:"bytes"` // size of the contents
	Expires time.Time `json:"expires"`
}
