package cell

import "os"

// Wire is what a gateway does with the HTTP of a cell while a process runs: it records the exchanges, or answers from a recording.
type Wire struct {
	// File is the recording to write, or the one to answer from, in clear. It goes with the request.
	File *os.File `json:"-"`
	// Recipient is the age recipient that a recording is encrypted to; "": File has answers.
	Recipient string `json:"recipient,omitempty"`
}

// Recording is what was recorded of a run's network.
type Recording struct {
	Digest    Digest `json:"digest"` // of the encrypted file
	Exchanges int64  `json:"exchanges"`
	Bytes     int64  `json:"bytes"`         // of bodies and headers, in clear
	Cut       int64  `json:"cut,omitempty"` // bodies that were cut: longer than 8 MiB, or beyond the 64 MiB of a run
	// NotRecorded counts what cannot be recorded, by kind: the kinds below.
	NotRecorded map[string]int64 `json:"not_recorded,omitempty"`
	// Incomplete is why the end of it is missing.
	Incomplete string `json:"incomplete,omitempty"`
}

// The kinds of what cannot be recorded.
const (
	NotHTTP       = "tcp"       // a connection that is neither HTTP nor TLS, or was open before
	NotTrusted    = "untrusted" // a client that does not trust the cell's authority
	NotUpgraded   = "upgrade"   // WebSocket, and other protocols in the place of HTTP
	NotKept       = "too-many"  // exchanges beyond the bounds of a run
	NotRecordable = "error"     // exchanges that could not be written
)

// Replayed is what became of the requests of a process that was answered from a recording.
type Replayed struct {
	Answered int64 `json:"answered"`
	// First is the first request that had no recorded answer, and Unanswered counts all.
	First      string `json:"first,omitempty"`
	Unanswered int64  `json:"unanswered,omitempty"`
	// Bodies are the first requests with another body than the recorded one, and Differing counts all.
	Bodies    []string `json:"bodies,omitempty"`
	Differing int64    `json:"differing,omitempty"`
	// Unasked counts the recorded requests that were not made; FirstUnasked is one.
	Unasked      int64  `json:"unasked,omitempty"`
	FirstUnasked string `json:"first_unasked,omitempty"`
}
