package api

import "strings"

// ServiceRequest asks for a service beside a new cell: the program of an image, in a cell of its own. The cell reaches it
// at the host name Name.
type ServiceRequest struct {
	// Name is a host name of one part; default: the last part of the image's name.
	Name string `json:"name,omitempty"`
	// Image is as RunRequest.Image, or a reference without "oci:", such as "postgres:16".
	Image string `json:"image"`
	// Command takes the place of the image's own arguments (CMD).
	Command []string `json:"command,omitempty"`
	Env     []string `json:"env,omitempty"` // NAME=value, in addition to the image's variables
	// Ready is a shell command that is run beside the program until it succeeds: only then the service is ready. Default:
	// the test of the image's HEALTHCHECK.
	Ready string `json:"ready,omitempty"`
}

// ServiceName is the name of a service that is given none, by the reference to its image: the last part, without tag
// and digest.
func ServiceName(reference string) string {
	name, _, _ := strings.Cut(reference[strings.LastIndexByte(reference, '/')+1:], "@")
	name, _, _ = strings.Cut(name, ":")
	return strings.ToLower(name)
}

// ServiceUse is a service that ran beside the cell of a run.
type ServiceUse struct {
	Name    string `json:"name"`
	Image   string `json:"image"`
	ImageID string `json:"image_digest,omitempty"` // digest of the image's manifest
}

// Serves says that a cell is the one in which a service runs.
type Serves struct {
	Cell     string   `json:"cell"`      // id of the cell that it runs beside
	CellName string   `json:"cell_name"` // name of that cell; the id when it has none
	Name     string   `json:"name"`      // the host name at which that cell reaches it
	Command  []string `json:"command"`   // its program, and arguments
	Exec     string   `json:"exec"`      // id of the command that its program is
	Running  bool     `json:"running"`   // its program runs
}

// Service is a service beside a cell.
type Service struct {
	Name     string `json:"name"`      // the host name at which the cell reaches it
	Cell     string `json:"cell"`      // id of the cell that it runs in
	CellName string `json:"cell_name"` // name of that cell
	Image    string `json:"image"`
	ImageID  string `json:"image_digest,omitempty"` // digest of the image's manifest
	Running  bool   `json:"running"`                // its program runs
}
