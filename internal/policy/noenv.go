package policy

import (
	"bytes"

	"github.com/goccy/go-yaml"
)

// WithoutEnvironment returns the text of a policy file without its section environment,
// whose values may be secrets, and reports whether it had one. A text without is returned
// as it is; of another, order and values stay, comments and lines don't.
func WithoutEnvironment(text []byte) ([]byte, bool, error) {
	var doc yaml.MapSlice
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.UseOrderedMap()).Decode(&doc); err != nil {
		return nil, false, err
	}
	for i, item := range doc {
		if item.Key == "environment" {
			doc = append(doc[:i:i], doc[i+1:]...)
			b, err := yaml.Marshal(doc)
			return b, true, err
		}
	}
	return text, false, nil
}
