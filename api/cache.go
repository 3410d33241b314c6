package api

import "time"

// Cache is a cache that is kept for a source: what runs in its cells wrote to a tool's directories, for later cells.
type Cache struct {
	ID     string `json:"id"`     // "k-…"
	Name   string `json:"name"`   // "go", or a path
	Source string `json:"source"` // the directory that it is kept for
	Image  string `json:"image"`  // of the cells that have it
	Bytes  int64  `json:"bytes"`  // on disk
	// Dirs lists where it is in cells.
	Dirs    []string  `json:"dirs"`
	Written time.Time `json:"written"`       // when something was last kept
	Used    time.Time `json:"used"`          // when a cell last had it, to the hour
	Run     string    `json:"run,omitempty"` // the latest of which something was kept
}

// CacheUse is what a run had of a cache.
type CacheUse struct {
	Name  string `json:"name"`  // "go", or a path
	Read  bool   `json:"read"`  // there was something in it, from earlier runs
	Wrote int64  `json:"wrote"` // bytes on disk
}

// CacheCheck is what was found of the files of a cache that are named by what they hold.
type CacheCheck struct {
	Cache Cache `json:"cache"` // which was verified
	Files int   `json:"files"` // that were compared with their names
	// Bad lists paths in cells that hold something else than their names say.
	Bad []string `json:"bad"`
}
