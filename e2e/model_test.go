package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A scripted model that poses as Anthropic's API: it answers POST /v1/messages. Each turn is one
// reply, chosen by the number of tool results in the conversation, so that repeating a request
// changes nothing.
type model struct {
	turns []turn
	next  func(body string, results int) turn // in place of turns; nil: these
	key   string                              // that requests must carry; others are refused as there
	mu    sync.Mutex
	saw   []modelRequest
}

// turn is what the model says: a text, and then perhaps the use of a tool.
type turn struct {
	text  string
	tool  string
	input map[string]any
}

// modelRequest is one request as it arrived.
type modelRequest struct {
	method, path, proto string
	header              http.Header
	body                []byte
	results             []string // what tools said, as the model got it
}

func (m *model) requests() []modelRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]modelRequest(nil), m.saw...)
}

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var ask struct {
		Model    string
		Stream   bool
		Tools    []struct{ Name string }
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
	}
	json.Unmarshal(body, &ask)
	var results []string
	for _, msg := range ask.Messages {
		var blocks []struct {
			Type    string
			Content json.RawMessage
		}
		json.Unmarshal(msg.Content, &blocks)
		for _, b := range blocks {
			if b.Type == "tool_result" {
				results = append(results, string(b.Content))
			}
		}
	}
	m.mu.Lock()
	m.saw = append(m.saw, modelRequest{r.Method, r.URL.RequestURI(), r.Proto, r.Header.Clone(), body, results})
	m.mu.Unlock()

	fail := func(status int, kind, text string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(map[string]any{"type": "error", "error": map[string]string{"type": kind, "message": text}})
	}
	if r.URL.Path == "/api/hello" || r.URL.Path == "/v1/oauth/hello" { // whether it can be reached
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"message":"hello"}`)
		return
	}
	if r.Header.Get("X-Api-Key") != m.key && r.Header.Get("Authorization") != "Bearer "+m.key {
		fail(http.StatusUnauthorized, "authentication_error", "invalid x-api-key")
		return
	}
	switch r.URL.Path {
	case "/v1/messages":
	case "/v1/messages/count_tokens":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"input_tokens":%d}`, len(body)/4)
		return
	default:
		fail(http.StatusNotFound, "not_found_error", r.URL.Path)
		return
	}
	say := turn{text: "ok"} // to side questions, which have no tools
	if len(ask.Tools) > 0 {
		if m.next != nil {
			say = m.next(string(body), len(results))
		} else {
			say = m.turns[min(len(results), len(m.turns)-1)]
		}
	}
	m.say(w, ask.Model, ask.Stream, say)
}

// say writes one message, in the events of
// https://docs.anthropic.com/en/api/messages-streaming or as a whole.
func (m *model) say(w http.ResponseWriter, name string, stream bool, say turn) {
	id := fmt.Sprintf("%x", time.Now().UnixNano())
	stop := "end_turn"
	content := []map[string]any{{"type": "text", "text": say.text}}
	if say.tool != "" {
		stop = "tool_use"
		content = append(content, map[string]any{"type": "tool_use", "id": "toolu_" + id, "name": say.tool, "input": say.input})
	}
	message := map[string]any{"id": "msg_" + id, "type": "message", "role": "assistant", "model": name, "stop_sequence": nil}
	if !stream {
		message["content"], message["stop_reason"], message["usage"] = content, stop, map[string]int{"input_tokens": 10, "output_tokens": 5}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(message)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(kind string, fields map[string]any) {
		fields["type"] = kind
		b, _ := json.Marshal(fields)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, b)
		w.(http.Flusher).Flush()
	}
	message["content"], message["stop_reason"], message["usage"] = []any{}, nil, map[string]int{"input_tokens": 10, "output_tokens": 1}
	send("message_start", map[string]any{"message": message})
	for i, c := range content {
		start := map[string]any{"type": "text", "text": ""}
		var deltas []map[string]any
		if c["type"] == "tool_use" {
			start = map[string]any{"type": "tool_use", "id": c["id"], "name": c["name"], "input": map[string]any{}}
			b, _ := json.Marshal(c["input"])
			for len(b) > 0 { // in pieces, as it comes
				n := min(len(b), 24)
				deltas = append(deltas, map[string]any{"type": "input_json_delta", "partial_json": string(b[:n])})
				b = b[n:]
			}
		} else {
			for word := range strings.SplitAfterSeq(say.text, " ") {
				deltas = append(deltas, map[string]any{"type": "text_delta", "text": word})
			}
		}
		send("content_block_start", map[string]any{"index": i, "content_block": start})
		for _, d := range deltas {
			send("content_block_delta", map[string]any{"index": i, "delta": d})
		}
		send("content_block_stop", map[string]any{"index": i})
	}
	send("message_delta", map[string]any{"delta": map[string]any{"stop_reason": stop, "stop_sequence": nil}, "usage": map[string]int{"output_tokens": 5}})
	send("message_stop", map[string]any{})
}
