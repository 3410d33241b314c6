package e2b

import (
	"encoding/json"
	"testing"
)

// X46: lists and dictionaries are told as JSON, whatever is in them.
func TestX46ValuesAreTold(t *testing.T) {
	for text, want := range map[string]string{
		`[1,{"$float":"NaN"},{"$tuple":[{"$int":"9007199254740993"}]},{"$bytes":"AA=="}]`:      `[1,null,[9007199254740993],"AA=="]`,
		`{"d":{"$opaque":{"type":"datetime.date","repr":"datetime.date(2020, 1, 2)"}},"n":[]}`: `{"d":"datetime.date(2020, 1, 2)","n":[]}`,
		`{"$dict":[[1,{"$set":[2]}],[{"$tuple":[1]},null]]}`:                                   `{"1":[2],"[1]":null}`,
		`{"$tuple":[]}`:               `[]`,
		`{"$int":"9007199254740993"}`: `null`, // no list and no dictionary
		`3`:                           `null`, `"x"`: `null`, ``: `null`, `[`: `null`,
		`[{"$int":"1,2"},{"$int":"x"}]`: `["1,2","x"]`,
		`{"$int":[1]}`:                  `{"$int":[1]}`, // no word
	} {
		got, err := json.Marshal(jsonOf(json.RawMessage(text)))
		if err != nil || string(got) != want {
			t.Errorf("%s: %s %v, want %s", text, got, err, want)
		}
	}
}
