package mcp

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/cell"
)

type evalIn struct {
	Cell    string `json:"cell" jsonschema:"name or id of the cell"`
	Code    string `json:"code" jsonschema:"what to evaluate; the value of the last expression is the answer"`
	Kind    string `json:"kind,omitempty" jsonschema:"python (default), node or java; a cell stays with what it has"`
	Timeout string `json:"timeout,omitempty" jsonschema:"such as 10s; default 1m. The interpreter can be used afterwards"`
	Fresh   bool   `json:"fresh,omitempty" jsonschema:"start a new interpreter: variables are lost"`
	Limit   int    `json:"limit,omitempty" jsonschema:"bytes of each text in the answer, at most 262144; default 24576"`
}

// evaluated is the outcome of an evaluation.
type evaluated struct {
	Cell   string          `json:"cell"`
	OK     bool            `json:"ok"`
	Type   string          `json:"type,omitempty"`
	Value  json.RawMessage `json:"value,omitempty"` // exact, where JSON can hold it; otherwise {"$float": "NaN"} and others
	Repr   *shown          `json:"repr,omitempty"`
	Error  *evalError      `json:"error,omitempty"`
	Cause  string          `json:"cause,omitempty"`
	Stdout shown           `json:"stdout"`
	Stderr shown           `json:"stderr"`
	Notes  []string        `json:"notes,omitempty"`
}

type evalError struct {
	Type      string `json:"type"`
	Message   string `json:"message"`
	Traceback string `json:"traceback,omitempty"`
}

// listener passes the daemon's progress to a call.
func (c *call) listener() client.Listener { return client.Listener{Progress: c.progress} }

func (s *Server) eval(ctx context.Context, c *call, in evalIn) (answer, error) {
	if err := needed("cell", in.Cell); err != nil {
		return answer{}, err
	}
	out, errs, done, err := s.collect(ctx, c)
	if err != nil {
		return answer{}, err
	}
	defer done()
	on := c.listener()
	on.Stdout = func(b []byte) { out.add(b); c.tell(lastLine(b)) }
	on.Stderr = func(b []byte) { errs.add(b); c.tell(lastLine(b)) }
	res, err := s.cfg.Client.Eval(ctx, in.Cell, api.EvalRequest{Code: in.Code, Timeout: in.Timeout, Fresh: in.Fresh, Kind: in.Kind}, on)
	if err != nil {
		return answer{}, err
	}
	return s.evaluation(res.Name, res.Result, out, errs, limitOf(in.Limit), res.Notes)
}

// evaluation makes an answer from an interpreter's answer.
func (s *Server) evaluation(name string, raw json.RawMessage, out, errs *collector, limit int, notes []string) (answer, error) {
	var ev cell.Evaluated
	if err := json.Unmarshal(raw, &ev); err != nil {
		return answer{}, &api.Error{Kind: "internal", Message: "cannot read the evaluation's result: " + err.Error()}
	}
	e := evaluated{Cell: name, OK: ev.OK, Cause: ev.Cause, Stdout: s.show(out, limit, ""), Stderr: s.show(errs, limit, ""), Notes: notes}
	a := answer{}
	text := []string{e.Stdout.Text, e.Stderr.Text}
	for _, b := range ev.Display {
		text = append(text, a.rich(b, true))
	}
	if v := ev.Value; v != nil {
		repr := s.cut(v.Repr, limit)
		if v.Cut > 0 {
			repr.Note = lines(repr.Note, fmt.Sprintf("%d characters of the value are left out: have the code write it to a file", v.Cut))
		}
		if v.JSONCut || len(v.JSON) > limit {
			repr.Note = lines(repr.Note, "its JSON is left out: it is too long or too deep")
		}
		e.Type, e.Repr = v.Type, &repr
		if len(v.JSON) <= limit {
			e.Value = v.JSON
		}
		text = append(text, repr.Text)
		if v.Cut > 0 {
			text = append(text, repr.Note)
		}
		text = append(text, a.rich(v.MIME, false))
	}
	if ev.Error != nil {
		trace := s.cut(strings.TrimRight(ev.Error.Traceback, "\n"), limit).Text
		e.Error = &evalError{Type: ev.Error.Type, Message: s.cut(ev.Error.Message, limit).Text, Traceback: trace}
		if trace == "" {
			trace = ev.Error.Type + ": " + e.Error.Message
		}
		text = append(text, trace)
	}
	switch ev.Cause {
	case "":
	case cell.CauseTimeout:
		text = append(text, "it reached its time limit and was interrupted; the interpreter can be used again")
	case cell.CauseStuck:
		text = append(text, "it reached its time limit and cannot be interrupted: fresh ends it and starts a new interpreter")
	case cell.CauseEnded:
		text = append(text, "the interpreter has ended: fresh starts a new one")
	default:
		text = append(text, "ended: "+ev.Cause)
	}
	a.text, a.data = lines(append(text, notes...)...), e
	return a, nil
}

// cut keeps the rest of a long text as a resource.
func (s *Server) cut(text string, limit int) shown {
	c := &collector{}
	c.add([]byte(text))
	return s.show(c, limit, "")
}

// mostPicture bounds a picture in an answer, in bytes of base64.
const mostPicture = 1 << 20

// rich adds the pictures of a bundle to an answer. It returns a text for the other forms, if
// requested, and names what is left out.
func (a *answer) rich(b cell.Bundle, text bool) string {
	note := ""
	for _, media := range []string{"image/png", "image/jpeg", "image/gif"} {
		data := strings.Join(strings.Fields(b[media]), "")
		if len(data) > mostPicture {
			note = fmt.Sprintf("(%s of %d bytes is left out: have the code write it to a file)", media, base64.StdEncoding.DecodedLen(len(data)))
		}
		if data == "" || len(data) > mostPicture {
			continue
		}
		if raw, err := base64.StdEncoding.DecodeString(data); err == nil {
			a.more = append(a.more, &sdk.ImageContent{Data: raw, MIMEType: media})
			return ""
		}
	}
	if !text {
		return note
	}
	for _, media := range []string{"text/plain", "text/markdown", "text/latex"} {
		if t, ok := b[media]; ok {
			return lines(t, note)
		}
	}
	for _, media := range slices.Sorted(maps.Keys(b)) { // no form that can be shown here
		note = lines(note, fmt.Sprintf("(%s, %d bytes)", media, len(b[media])))
	}
	return note
}
