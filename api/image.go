package api

import "time"

// ImagePullRequest pulls an image, or checks it again.
type ImagePullRequest struct {
	// Image is its name: "docker.io/library/python:3.12-slim", or the path of a layout directory
	// or an archive; "oci:" before it is allowed.
	Image     string `json:"image"`
	User      string `json:"user,omitempty"`       // user name for the registry, "<token>" for an identity token; it is not stored
	Password  string `json:"password,omitempty"`   // sent to the registry's own host alone; it is not stored
	CallerDir string `json:"caller_dir,omitempty"` // what a relative path is relative to
}

// Image is an OCI image that is unpacked on the daemon's host.
type Image struct {
	ID      string    `json:"id"`               // digest of its config: equal for equal images, wherever they came from
	Digest  string    `json:"digest"`           // digest of its manifest
	Refs    []string  `json:"refs"`             // names by which it was pulled
	Bytes   int64     `json:"bytes"`            // size of its files
	Files   int       `json:"files"`            // number of files
	Layers  int       `json:"layers"`           // number of layers
	Created time.Time `json:"created,omitzero"` // as the image says
	Pulled  time.Time `json:"pulled"`           // when it was pulled
	Used    time.Time `json:"used"`             // when a cell was last made from it
	Cells   []string  `json:"cells"`            // names of the cells made from it
	Env     []string  `json:"env,omitempty"`
	User    string    `json:"user,omitempty"`    // the user that its own command would run as
	Workdir string    `json:"workdir,omitempty"` // the directory that its own command would run in
	Notes   []string  `json:"notes,omitempty"`   // differences from the image's configuration
	// Made says how it was made from a Dockerfile; absent: it was pulled. One without refs is a step on the way.
	Made *ImageMade `json:"made,omitempty"`
}

// ImageMade says how an image was made here.
type ImageMade struct {
	Dockerfile string `json:"dockerfile"`     // as --image names it
	Step       string `json:"step"`           // the instructions that made its last layer
	From       string `json:"from,omitempty"` // id of the image below that
	Run        string `json:"run,omitempty"`  // id of the run that made it, if it was RUN
}
