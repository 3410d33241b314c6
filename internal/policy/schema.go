package policy

import "encoding/json"

// Schema is the JSON Schema of policy files. It comes from the table of words
// that reads them; what it can't say (a name that is one, a path that lies
// below) is said when the file is read.
func Schema() []byte {
	s := (&File{LimitLines: map[string]int{}}).words().schema()
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "A policy of pando, version 1"
	b, _ := json.MarshalIndent(s, "", "  ") // maps and strings: cannot fail
	return append(b, '\n')
}
