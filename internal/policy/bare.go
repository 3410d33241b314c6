package policy

import (
	"bytes"

	"github.com/goccy/go-yaml"
)

// Bare returns the text of a policy file without its comments and its section environment,
// since values of variables may be secrets, and reports whether it had such a section.
// Order and values of the rest stay; lines don't.
func Bare(text []byte) (rules []byte, hadEnvironment bool, err error) {
	var doc yaml.MapSlice
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.UseOrderedMap()).Decode(&doc); err != nil {
		return nil, false, err
	}
	for i, item := range doc {
		if item.Key == "environment" {
			doc, hadEnvironment = append(doc[:i:i], doc[i+1:]...), true
			break
		}
	}
	rules, err = yaml.Marshal(doc)
	return rules, hadEnvironment, err
}
