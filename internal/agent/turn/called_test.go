package turn

import (
	"strings"
	"testing"
)

// Answers with calls of tools, in the shapes of each interface.
func TestCallsOfAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want int64
	}{
		"messages":           {`{"type":"message","content":[{"type":"text","text":"x"},{"type":"tool_use","id":"a","name":"Bash","input":{"content":[{"type":"tool_use","id":"z"}]}},{"id":"b","type":"tool_use","name":"Read","input":{}}]}`, 2},
		"messages, streamed": {"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"Bash\",\"input\":{}}}\n\nevent: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":2,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n", 1},
		"responses":          {`{"output":[{"type":"message","content":[{"type":"output_text","text":"x"}]},{"type":"function_call","id":"fc","call_id":"a","name":"sh","arguments":"{}"},{"type":"custom_tool_call","call_id":"b","id":"ct","name":"apply_patch","input":"x"}]}`, 2},
		"responses, streamed": {`data: {"type":"response.output_item.added","item":{"type":"function_call","id":"fc","call_id":"a"}}
data: {"type":"response.output_item.done","item":{"type":"function_call","id":"fc","call_id":"a"}}
data: {"type":"response.completed","response":{"output":[{"type":"function_call","id":"fc","call_id":"a"}]}}`, 1},
		"chat": {`{"choices":[{"message":{"tool_calls":[{"id":"a","type":"function","function":{"name":"x","arguments":"{}"}},{"id":"b","type":"function"}]}}]}`, 2},
		"chat, streamed": {`data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"x"}}]}}]}
data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]}`, 1},
		"gemini":             {`[{"candidates":[{"content":{"parts":[{"functionCall":{"name":"a","args":{"functionCall":{}}}},{"text":"x"}]}}]},{"candidates":[{"content":{"parts":[{"functionCall":{"name":"a","args":{}}}]}}]}]`, 2},
		"gemini, of account": {`data: {"response":{"candidates":[{"content":{"parts":[{"functionCall":{"name":"a","args":{}}}]}}]}}`, 1},
		"none":               {`{"content":[{"type":"text","text":"\"type\":\"tool_use\",\"id\":\"a\""}],"output":[{"type":"reasoning","id":"r"}]}`, 0},
		"many":               {`{"content":[` + strings.Repeat(`{"type":"tool_use","id":"a"},`, 5) + `{}]}`, 1},
	} {
		for _, n := range []int{1, 7, len(c.text)} {
			u := NewUse()
			for text := c.text; len(text) > 0; {
				k := min(n, len(text))
				u.Write([]byte(text[:k]))
				text = text[k:]
			}
			if got := u.Found().Calls; got != c.want {
				t.Errorf("%s, in pieces of %d bytes: %d calls, not %d", name, n, got, c.want)
			}
		}
	}
}
