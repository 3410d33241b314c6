package api

// Default is the default of a flag in the user's configuration, as `pando config ls` lists it.
type Default struct {
	Key    string   `json:"key"`    // the flag, without its dashes
	Values []string `json:"values"` // several of a flag that may be repeated
	Of     string   `json:"of"`     // "user", or the source that it is for
}
