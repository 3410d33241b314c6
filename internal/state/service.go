package state

import (
	"slices"

	"github.com/pando-dev/pando/internal/cell"
)

// Service is a service that runs beside a cell, as that cell's record has it.
type Service struct {
	Name    string  `json:"name"` // by which the cell reaches it
	Cell    cell.ID `json:"cell"` // in which it runs
	Image   string  `json:"image"`
	ImageID string  `json:"image_digest,omitempty"`
}

// Serves is what the cell of a service has of it.
type Serves struct {
	Of      cell.ID  `json:"of"` // the cell that it runs beside, and goes with
	Name    string   `json:"name"`
	Command []string `json:"command"`
	Workdir string   `json:"workdir"`
	Ports   []int    `json:"ports,omitempty"`  // on which it listens once it is ready; none: any
	Signal  string   `json:"signal,omitempty"` // that asks it to end; "": SIGTERM
	// Ready is a command that succeeds in its cell when it can be used; nil: it can when it listens.
	Ready []string `json:"ready,omitempty"`
}

// ServiceUses are a cell's services as its runs have them.
func (c *Cell) ServiceUses() (list []ServiceUse) {
	for _, s := range c.Services {
		list = append(list, ServiceUse{Name: s.Name, Image: s.Image, ImageID: s.ImageID})
	}
	return list
}

// ServicesAt are the names of a cell's services of which a checkpoint of it says where they were.
func (c *Cell) ServicesAt(k *Checkpoint) []string {
	return slices.DeleteFunc(c.ServiceNames(), func(name string) bool { return k.Services[name] == "" })
}

// ServiceNames are the names of a cell's services.
func (c *Cell) ServiceNames() (names []string) {
	for _, s := range c.Services {
		names = append(names, s.Name)
	}
	return names
}
