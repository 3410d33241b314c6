package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// trustFlag says what of a repository's configuration an agent may run: "true", all; "false", nothing, whatever was said
// before; or digests of what there may be.
type trustFlag struct {
	of     *api.AgentRequest
	values []string
}

// Set adds a value.
func (t *trustFlag) Set(v string) error {
	switch v {
	case "true", "false":
		t.of.TrustRepository, t.of.TrustContent = v == "true", nil
	default:
		if _, err := cell.ParseDigest(v); err != nil {
			return fmt.Errorf("it is true, false, or a digest that pando inspect says: sha256:…")
		}
		if !slices.Contains(t.of.TrustContent, v) {
			t.of.TrustContent = append(t.of.TrustContent, v)
		}
	}
	t.values = append(t.values, v)
	return nil
}

func (t *trustFlag) String() string { return strings.Join(t.values, ",") }

// Type implements pflag.Value.
func (t *trustFlag) Type() string { return "true|false|DIGEST" }

// Append, Replace and GetSlice implement pflag.SliceValue.
func (t *trustFlag) Append(v string) error { return t.Set(v) }

// Replace sets all values anew.
func (t *trustFlag) Replace(values []string) error {
	t.of.TrustRepository, t.of.TrustContent, t.values = false, nil, nil
	for _, v := range values {
		if err := t.Set(v); err != nil {
			return err
		}
	}
	return nil
}

// GetSlice returns the values in the order they were given.
func (t *trustFlag) GetSlice() []string { return t.values }
