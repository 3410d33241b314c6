package turn

import (
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
)

// The shapes of answers as the services give them. The texts are ours.
const (
	messagesStream = `event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"claude-sonnet-4-5-20250929","content":[],"stop_reason":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":300,"cache_read_input_tokens":2000,"cache_creation":{"ephemeral_5m_input_tokens":300,"ephemeral_1h_input_tokens":0},"output_tokens":1,"service_tier":"standard"}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"x","input":{"usage":{"output_tokens":9999}}}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"A \"usage\": {\"output_tokens\": 999999} is text."}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}}

event: message_stop
data: {"type":"message_stop"}

`
	messagesWhole = `{"id":"msg_1","type":"message","model":"claude-opus-4-1","content":[{"type":"tool_use","input":{"usage":{"input_tokens":7777}}}],"usage":{"input_tokens": 10 ,"output_tokens":20}}`
	responses     = `event: response.created
data: {"type":"response.created","response":{"id":"r","model":"gpt-5-codex","output":[],"usage":null}}

event: response.completed
data: {"type":"response.completed","response":{"id":"r","model":"gpt-5-codex-2025","output":[{"type":"message","usage":{"output_tokens":9}}],"usage":{"input_tokens":1000,"input_tokens_details":{"cached_tokens":900},"output_tokens":50,"output_tokens_details":{"reasoning_tokens":40},"total_tokens":1050}}}

`
	responseWhole = `{"id":"r","object":"response","model":"gpt-5","output":[],"usage":{"input_tokens":1,"output_tokens":2,"total_tokens":3}}`
	chatStream    = `data: {"id":"c","model":"gpt-4o","choices":[{"delta":{"content":"Hi"}}],"usage":null}

data: {"id":"c","model":"gpt-4o","choices":[],"usage":{"prompt_tokens":30,"completion_tokens":4,"total_tokens":34,"prompt_tokens_details":{"cached_tokens":10}}}

data: [DONE]

`
	chatSilent   = "data: {\"model\":\"gpt-4o\",\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\ndata: [DONE]\n\n"
	geminiStream = `data: {"candidates":[{"content":{"parts":[{"text":"a"}]}}],"usageMetadata":{"promptTokenCount":100,"candidatesTokenCount":1,"promptTokensDetails":[{"modality":"TEXT","tokenCount":100}]},"modelVersion":"gemini-2.5-pro"}

data: {"candidates":[],"usageMetadata":{"promptTokenCount":100,"candidatesTokenCount":8,"thoughtsTokenCount":2,"toolUsePromptTokenCount":5,"cachedContentTokenCount":60,"totalTokenCount":115},"modelVersion":"gemini-2.5-pro"}

`
	geminiArray = `[{"usageMetadata":{"promptTokenCount":3},"modelVersion":"gemini-2.5-flash"},
{"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":4},"modelVersion":"gemini-2.5-flash"}]`
	geminiOwn = `data: {"response":{"candidates":[],"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":4},"modelVersion":"gemini-2.5-flash"}}`
)

func use(body string, n int) cell.ModelUse {
	u := NewUse()
	for len(body) > 0 {
		k := min(n, len(body))
		u.Write([]byte(body[:k]))
		body = body[k:]
	}
	return u.Found()
}

func TestAnswersSayTheirUse(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want cell.ModelUse
	}{
		"messages":        {messagesStream, cell.ModelUse{Model: "claude-sonnet-4-5-20250929", Requests: 1, Input: 25, Output: 15, CacheRead: 2000, CacheWrite: 300, Calls: 1}},
		"messages, whole": {messagesWhole, cell.ModelUse{Model: "claude-opus-4-1", Requests: 1, Input: 10, Output: 20}},
		"responses":       {responses, cell.ModelUse{Model: "gpt-5-codex-2025", Requests: 1, Input: 100, Output: 50, CacheRead: 900}},
		"response, whole": {responseWhole, cell.ModelUse{Model: "gpt-5", Requests: 1, Input: 1, Output: 2}},
		"chat":            {chatStream, cell.ModelUse{Model: "gpt-4o", Requests: 1, Input: 20, Output: 4, CacheRead: 10}},
		"chat without":    {chatSilent, cell.ModelUse{Model: "gpt-4o", Requests: 1, Unseen: 1}},
		"broken off":      {messagesStream[:len(messagesStream)/2], cell.ModelUse{Model: "claude-sonnet-4-5-20250929", Requests: 1, Input: 25, Output: 1, CacheRead: 2000, CacheWrite: 300}},
		"gemini":          {geminiStream, cell.ModelUse{Model: "gemini-2.5-pro", Requests: 1, Input: 45, Output: 10, CacheRead: 60}},
		"gemini, array":   {geminiArray, cell.ModelUse{Model: "gemini-2.5-flash", Requests: 1, Input: 3, Output: 4}},
		"gemini's own":    {geminiOwn, cell.ModelUse{Model: "gemini-2.5-flash", Requests: 1, Input: 3, Output: 4}},
		"other numbers":   {`{"model":"m","usage":{"input_tokens":-5,"output_tokens":1.5}}`, cell.ModelUse{Model: "m", Requests: 1, Unseen: 1}},
		"a large number":  {`{"usage":{"output_tokens":99999999999999999999999}}`, cell.ModelUse{Requests: 1, Output: maxFigure}},
		"no JSON":         {"<html>", cell.ModelUse{Requests: 1, Unseen: 1}},
		"a bad name":      {"{\"model\":\"a\\u001bb\",\"usage\":{\"output_tokens\":1}}", cell.ModelUse{Model: "a?b", Requests: 1, Output: 1}},
	} {
		for _, n := range []int{1, 7, 1 << 20} {
			if got := use(c.body, n); got != c.want {
				t.Errorf("%s, in pieces of %d:\n%+v, and not\n%+v", name, n, got, c.want)
			}
		}
	}
}

// FuzzUse: whatever a service answers, what is known of it does not depend on how it came, is no less
// than nothing, and little of it is kept.
func FuzzUse(f *testing.F) {
	for _, body := range []string{messagesStream, messagesWhole, responses, chatStream, geminiStream, geminiArray, geminiOwn, strings.Repeat("[", 99) + "1" + strings.Repeat("]", 99), "1}2,3", `{"usage":{"input_tokens":1,"input_tokens_details":{"cached_tokens":5}}}`} {
		f.Add([]byte(body), 3)
	}
	f.Fuzz(func(t *testing.T, body []byte, n int) {
		n = max(1, n&0xff)
		var whole cell.ModelUse
		boundtest.Allocates(t, len(body), func() { whole = use(string(body), 1<<30) })
		if pieces := use(string(body), n); whole != pieces {
			t.Fatalf("whole: %+v, in pieces of %d: %+v", whole, n, pieces)
		}
		if whole.Input < 0 || whole.Output < 0 || whole.CacheRead < 0 || whole.CacheWrite < 0 || len(whole.Model) > maxModel {
			t.Fatalf("%+v", whole)
		}
	})
}
