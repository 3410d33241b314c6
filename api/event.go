package api

import (
	"encoding/json"
	"time"
)

// Event is one event of a run, with its place in the hash chain.
type Event struct {
	Run  string    `json:"run"`
	Seq  int64     `json:"seq"`  // its number in the run's stream, from 1
	Time time.Time `json:"time"` // when it was written
	Kind string    `json:"kind"` // process.exit, decision, flow, …
	// Text describes the event in one line for people.
	Text string `json:"text"`
	// Denied says that the policy denied it, or that it reached a limit.
	Denied bool            `json:"denied,omitempty"`
	Fields json.RawMessage `json:"fields,omitempty"` // as recorded
	Prev   string          `json:"prev"`             // digest of the line before it in the run's records
}

// The formats of events.
const (
	EventsJSON = "json" // Event
	EventsOCSF = "ocsf" // events of the Open Cybersecurity Schema Framework
)

// EventError is the last line of a stream of events that broke off.
type EventError struct {
	Error *Error `json:"error"`
}
