package state

import (
	"encoding/json"

	"github.com/pando-dev/pando/internal/agent/price"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/workspace"
)

// Budgets are what a policy allows a cell to do only so many times; 0: any
// number.
type Budgets struct {
	Forks int64 `json:"forks,omitempty"` // cells made of it
	Execs int64 `json:"execs,omitempty"` // commands run in it, in runs or beside them
	// Of names the Budget that the cell shares with its forks; "": it has none.
	Of cell.ID `json:"of,omitempty"`
}

// Kept is what was asked for a cell, and what a later run in it goes by until it is told
// something else: what may be reached, what is lent, shown and limited.
// The variables of a command, and its time-out, are that command's alone.
type Kept struct {
	Policy      string   `json:"policy,omitempty"` // text of a policy file
	PolicyName  string   `json:"policy_name,omitempty"`
	NoVariables bool     `json:"no_variables,omitempty"` // those of the policy file, which may be secrets, are not kept
	Mounts      []string `json:"mounts,omitempty"`
	ReadOnly    bool     `json:"read_only,omitempty"`
	Allow       []string `json:"allow,omitempty"`
	Credentials []string `json:"credentials,omitempty"`
	Limits      Limits   `json:"limits,omitzero"`
	Caches      []string `json:"caches,omitempty"`      // names
	CacheWrite  string   `json:"cache_write,omitempty"` // "accepted", "always"
	Config      []string `json:"config,omitempty"`      // what of it were defaults of the user's configuration: "allow @npm"
}

// Prices are the user's own prices of models in the policy.
func (s *Setup) Prices() []price.Own {
	var of struct {
		Prices []price.Own `json:"prices"`
	}
	json.Unmarshal([]byte(s.PolicyText), &of) // without a policy there are none
	return of.Prices
}

// Setup is what governs a cell: the effective policy and what follows from it.
type Setup struct {
	Policy     cell.Digest    `json:"policy"`
	PolicyText string         `json:"policy_text"` // canonical form: these bytes are what was digested
	Mounts     []cell.Mount   `json:"mounts"`
	Seeds      []image.Seed   `json:"seeds,omitempty"` // what it finds over an image
	Env        []string       `json:"env"`             // from the image, never values the user gave
	User       cell.User      `json:"user"`
	Kernel     string         `json:"kernel,omitempty"` // as cell.Spec has it; "": none was asked for
	Limits     cell.Limits    `json:"limits"`
	Asked      []string       `json:"asked,omitempty"`
	Downgrades []string       `json:"downgrades,omitempty"`
	Talks      bool           `json:"talks,omitempty"`       // has an interface, and a gateway behind it
	TrustLists []string       `json:"trust_lists,omitempty"` // files of the host with authorities that it trusts, too
	Origins    policy.Origins `json:"origins"`               // where the policy's lines come from
	Handles    []string       `json:"handles,omitempty"`     // credentials that the policy lends
	Notes      []string       `json:"notes,omitempty"`
	Kept       Kept           `json:"kept,omitzero"` // what later runs go by until they are told something else
	Budgets    Budgets        `json:"budgets,omitzero"`
	// Hidden and ReadOnly are paths of the workspace, and Unmasked says which of
	// them are not covered, and why.
	Hidden   []string `json:"hidden,omitempty"`
	ReadOnly []string `json:"read_only,omitempty"`
	Programs []string `json:"programs,omitempty"` // that are denied
	Unmasked []string `json:"unmasked,omitempty"`
}

// Shared is what the registry keeps once for all forks of a template.
type Shared struct {
	Digest  cell.Digest         `json:"digest"`
	Setup   Setup               `json:"setup"`
	LeftOut []workspace.LeftOut `json:"left_out,omitempty"`
}
