package api

import "time"

// ImagePullRequest asks for an image to be fetched, or looked at again.
type ImagePullRequest struct {
	// Image is where it is: "docker.io/library/python:3.12-slim", or the path of
	// a layout directory or an archive; "oci:" before it is allowed.
	Image     string `json:"image"`
	User      string `json:"user,omitempty"`       // who asks the registry; nothing of it is kept
	Password  string `json:"password,omitempty"`   // told to the registry's own host alone
	CallerDir string `json:"caller_dir,omitempty"` // what a relative path is relative to
}

// Image is an OCI image that is unpacked here.
type Image struct {
	ID      string    `json:"id"`               // digest of its config: the same image has the same, wherever it came from
	Digest  string    `json:"digest"`           // of its manifest
	Refs    []string  `json:"refs"`             // by which it was pulled
	Bytes   int64     `json:"bytes"`            // of its files
	Files   int       `json:"files"`            // how many
	Layers  int       `json:"layers"`           // how many
	Created time.Time `json:"created,omitzero"` // as the image says
	Pulled  time.Time `json:"pulled"`           // when it was pulled
	Used    time.Time `json:"used"`             // when a cell was last made from it
	Cells   []string  `json:"cells"`            // names of those that are
	Env     []string  `json:"env,omitempty"`
	User    string    `json:"user,omitempty"`    // who its own command would run as
	Workdir string    `json:"workdir,omitempty"` // and where
	Notes   []string  `json:"notes,omitempty"`   // what is different here from what the image says
}
